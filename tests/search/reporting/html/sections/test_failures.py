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


def test_region_of_infeasible_trials_and_split_ones_are_told():
    rates = [10 ** (-4 + 0.15 * number) for number in range(20)]
    trials = [
        trial(number, "infeasible" if rate > 1e-2 else "pruned", [0.1], {"lr": rate}, reason="out of memory: 3 GiB")
        for number, rate in enumerate(rates)
    ]
    lost = [one for one in trials if one.params["lr"] > 1e-2]
    for one in lost:
        one.user_attrs["infeasibility"] = {"constraint": "memory", "violation": 1.0}
    trials[2].user_attrs["micro_batches"] = {"batch_size": 8, "accumulation": 2}
    told = build(search(trials))
    assert f"Infeasible: memory {len(lost)} of 20, where lr >= " in told.says
    assert f"({len(lost)} of {len(lost)} there, 0 of {20 - len(lost)} elsewhere)." in told.says
    assert "smaller micro-batches for the same updates: trial 2 with batch_size=8, accumulation=2." in told.says
    assert told.table[1][:2] == [str(len(lost)), "infeasible"]
    assert told.title == "Infeasible trials"
    (split,) = build(search([trials[2]])).says.splitlines()
    assert split.startswith("Out of memory, then ")
