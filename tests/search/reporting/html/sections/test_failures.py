from searchlight.search.reporting.html.sections.failures import build
from tests.search.reporting.html.page_studies import many, search, trial


def test_reasons_that_differ_in_numbers_count_together():
    trials = [
        trial(0, scores=[0.1]),
        trial(1, "failed", reason="RuntimeError: 12.5 GiB asked at 0x7f00"),
        trial(2, "failed", reason="ValueError: no such file"),
        trial(3, "failed", reason="RuntimeError: 9 GiB asked at 0x7e12"),
        trial(4, "diverged", [0.1], reason="train/loss is not finite", divergence={"kind": "loss", "epoch": 1}),
    ]
    told = build(search(trials))
    assert told.table[1:] == [
        ["2", "failed", "RuntimeError: 12.5 GiB asked at 0x7f00 (and 1 that differ in numbers)", "1, 3"],
        ["1", "failed", "ValueError: no such file", "2"],
        ["1", "diverged", "train/loss is not finite", "4"],
    ]
    assert told.says.startswith("Of 5 trials 3 failed and 1 diverged: 80 %.")
    assert "Diverged: all 1 of 2; loss 1; first in epoch 1." in told.says
    assert "errors/" in told.says


def test_where_trials_diverge_is_told():
    assert "Diverged: fp16" in build(many(80, seed=3)).says


def test_unknown_reason_and_no_failure_are_told_as_such():
    assert build(search([trial(0, "failed")])).table[1][2] == "no reason is known"
    assert build(search([trial(0, scores=[0.1]), trial(1, "pruned", [0.1]), trial(2, "interrupted")])) is None
