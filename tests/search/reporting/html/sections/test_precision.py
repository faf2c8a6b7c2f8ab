import math

from searchlight.search.reporting.html.sections.precision import build
from tests.search.reporting.html.page_studies import search, trial


def metrics(speed, memory, skipped=0):
    def of(epoch):
        amp = {"amp/skipped": skipped * epoch, "train/updates": 100 * epoch - skipped * epoch}
        return {"time/samples_per_s": speed, "sys/gpu_memory_gib": memory, **amp}

    return of


def in_mode(number, mode, scores, outcome="completed", of=None):
    return trial(number, outcome, scores, {"lr": 0.01, "precision": mode}, metrics=of)


def test_modes_are_compared_by_result_and_cost():
    trials = [
        in_mode(0, "fp32", [0.4, 0.5], of=metrics(100.0, 12.0)),
        in_mode(1, "fp32", [0.2, 0.3], of=metrics(120.0, 11.0)),
        in_mode(2, "fp16", [0.3, 0.6], of=metrics(220.0, 6.0, skipped=2)),
        in_mode(3, "fp16", [0.1], "diverged", of=metrics(220.0, 6.0, skipped=4)),
    ]
    told = build(search(trials))
    columns = {name: cells for name, *cells in zip(*told.table, strict=True)}
    assert {name: cells for name, cells in columns.items() if name != "trials"} == {
        "precision": ["fp32", "fp16"],
        "best val/score": ["0.5", "0.6"],
        "median val/score by epoch 2": ["0.4", "0.6"],
        "median samples per second": ["110", "220"],
        "GPU memory, GiB": ["12", "6"],
        "updates skipped": ["0 %", "3 %"],
        "diverged": ["0", "1"],
    }
    assert "The best value, 0.6, was reached in fp16 (1 of 1 trial)." in told.says
    assert "1 of 2 in fp16 diverged." in told.says
    assert not told.figures, "the table says it all"


def test_updates_of_several_kinds_count_together():
    def of(epoch):
        return {"train/g/updates": 60, "train/d/updates": 30, "amp/skipped/g": 10, "amp/skipped/d": 0}

    told = build(search([in_mode(0, "fp16", [0.1], of=of), in_mode(1, "fp32", [0.1])]))
    assert [row[-2] for row in told.table] == ["updates skipped", "10 %", "-"]


def test_modes_are_compared_at_the_epoch_that_all_reached():
    trials = [in_mode(0, "fp32", [0.1, 0.9]), in_mode(1, "fp32", [0.3], "pruned"), in_mode(2, "bf16", [0.2], "pruned")]
    head, *rows = build(search(trials)).table
    place = head.index("median val/score by epoch 1")
    assert [row[place] for row in rows] == ["0.2", "0.2"]


def test_best_value_of_several_modes_names_them_all():
    told = build(search([in_mode(0, "fp32", [0.9]), in_mode(1, "fp32", [0.8]), in_mode(2, "fp16", [0.5, 0.9])])).says
    assert "The best value, 0.9, was reached in fp32 (1 of 2 trials) and fp16 (1 of 1 trial)." in told


def test_columns_that_no_trial_reported_are_left_out():
    not_finite = in_mode(0, "fp32", [0.1], of=lambda epoch: {"time/samples_per_s": math.nan})
    head, *_ = build(search([not_finite, in_mode(1, "bf16", [0.1])])).table
    assert head == ["precision", "trials", "best val/score", "median val/score by epoch 1", "diverged"]


def test_any_mode_has_a_row_and_a_function_no_section():
    new = trial(1, scores=[0.1])
    new.user_attrs["config"]["precision"] = "fp8"
    assert build(search([new])).says == "All trials ran in fp8."
    assert [row[0] for row in build(search([in_mode(0, "fp32", [0.1]), new])).table] == ["precision", "fp32", "fp8"]
    new.user_attrs["config"]["precision"] = 0.5  # of a function, which means something else by it
    assert build(search([new])) is None
    assert build(search([trial(0, scores=[0.1])])) is None


def test_mode_in_which_all_diverged_has_a_row():
    told = build(search([in_mode(0, "fp32", [0.1]), in_mode(1, "fp16", [], "diverged")]))
    assert told.table[2][:3] == ["fp16", "1", "-"]
    assert "1 of 1 in fp16 diverged." in told.says
