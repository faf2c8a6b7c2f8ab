from searchlight.search.reporting.html.sections.best_trial import build, format_gain
from searchlight.search.space.objectives import Objective
from tests.search.reporting.html.page_studies import search, trial

DEFAULTS = {"lr": 0.01}


def says(*trials, first=DEFAULTS, **more):
    return build(search(trials, first, **more)).says


def gain_by(epoch):
    return f"gain over the defaults by epoch {epoch}, one trial each"


def reached(number, *scores, outcome="completed", reason=""):
    return trial(number, outcome, scores, {"lr": 0.01 * (number + 1)}, reason)


def test_gain_over_the_defaults_is_told():
    trials = [reached(0, 0.4, 0.5), reached(1, 0.6, 0.75, 0.7)]
    told = build(search(trials, DEFAULTS))
    assert "Trial 1 reached val/score 0.75 in epoch 2 of 3." in told.says
    assert "By epoch 2, the last that both reached, it had 0.75 and the task's defaults (trial 0) had 0.5" in told.says
    assert ": 0.25 (50 %) better. The trial of the defaults ran to its end, epoch 2." in told.says
    assert "It is the best of 2 trials and the defaults are one trial, so part of this may be chance." in told.says
    assert told.table == [["parameter", "best", "defaults", "searched in"], ["lr", "0.02", "0.01", "0.0001..0.1:log"]]
    assert "Not searched: epochs 9." in told.notes
    assert "1-2.pt" in told.notes
    assert format_gain(search(trials, DEFAULTS)) == (gain_by(2), "+0.25 (50 %)")


def test_best_value_has_its_baseline_and_other_metrics():
    baselines = {"val/score_baseline": 0.4, "val/score_lookup": 0.3}
    searched = search([trial(0, scores=(0.5,), metrics=lambda epoch: baselines)])
    searched.about["units"] = {
        "val/score": "1 is the best",
        "val/score_lookup": "score of a table",
        "val/nmse": "a share",
    }
    first, *others = build(searched).says.split("\n")
    assert "Trial 0 reached val/score 0.5 (1 is the best, baseline 0.4) in epoch 1 of 1." in first
    assert others == ["val/score_lookup 0.3, score of a table"]


def test_gain_of_a_loss_is_the_lower_value():
    trials, lower = [reached(0, 0.5), reached(1, 0.4)], (Objective("val/score", "min"),)
    assert "had 0.5: 0.1 (20 %) better" in says(*trials, objectives=lower)
    assert format_gain(search(trials, DEFAULTS, objectives=lower)) == (gain_by(1), "-0.1 (20 %)")


def test_defaults_that_are_best_are_told_as_best():
    trials = [reached(0, 0.5), reached(1, 0.4)]
    assert "These are the task's defaults: no other trial reported a better value." in says(*trials)
    assert build(search(trials, DEFAULTS)).table[0] == ["parameter", "best", "searched in"]
    assert format_gain(search(trials, DEFAULTS)) == ("gain over the defaults", "none")


def test_stopped_defaults_are_compared_at_their_last_epoch():
    trials = [reached(0, 0.4, outcome="pruned", reason="not among the best at epoch 1"), reached(1, 0.3, 0.5, 0.8)]
    told = says(*trials)
    assert "The trial of the defaults was stopped after epoch 1 (not among the best at epoch 1)" in told
    assert "By epoch 1, the last that both reached, it had 0.3 and the task's defaults (trial 0) had 0.4: " in told
    assert "0.1 (25 %) worse." in told
    assert format_gain(search(trials, DEFAULTS)) == (gain_by(1), "none")


def test_copy_that_began_after_the_defaults_ended_is_not_compared():
    copy = reached(1, 0.3, 0.5, 0.8)
    for epoch in (1, 2):
        del copy.intermediate_values[epoch]
    trials = [reached(0, 0.4, outcome="pruned"), copy]
    assert "cannot be compared with it: their trial was stopped after epoch 1" in says(*trials)
    assert format_gain(search(trials, DEFAULTS)) is None


def test_trials_with_the_best_value_are_all_told():
    trials = [
        reached(0, 0.4),
        reached(1, 0.9),
        reached(2, 0.9),
        reached(3, 0.5, 0.9),
        reached(4, 0.9, outcome="failed"),
    ]
    assert "Trial 1 reached val/score 0.9 in epoch 1 of 1. The same value was reached in trials 2, 3. " in says(*trials)


def test_diverged_defaults_are_no_measure():
    best, silent = reached(1, 0.5), reached(0, outcome="diverged", reason="train/loss is not finite")
    assert "cannot be compared with it: their trial diverged (train/loss is not finite)." in says(silent, best)
    assert format_gain(search([silent, best], DEFAULTS)) is None
    ahead = says(reached(0, 0.7, outcome="diverged", reason="its loss rose"), best)
    assert "had 0.7: 0.2 (29 %) worse. The trial of the defaults diverged (its loss rose)." in ahead


def test_missing_defaults_are_told_as_not_tried():
    best = reached(1, 0.5)
    assert "were not tried" in says(best, first=None)
    assert "were not tried" in says(best, first={})  # a function's space has no defaults
    assert "were not tried" in says(best, first=DEFAULTS)  # interrupted before they began
    partly = trial(0, scores=[0.4], params={"lr": 0.01, "precision": "bf16"})
    assert "were not tried, for example because one lies outside" in says(partly, trial(1, scores=[0.5], params={}))


def test_values_of_the_table_are_whole_or_a_dash():
    best = trial(1, scores=[0.5], params={"lr": 0.02, "precision": "fp16"})
    best.user_attrs["config"].update(loss_scale=65536.0, decay=0.9999999, data=None)
    told = build(search([reached(0, 0.4), best], DEFAULTS))
    assert told.table[2] == ["precision", "fp16", "-", "fp32,bf16,fp16"]
    assert "Not searched: epochs 9, loss_scale 65536, decay 0.9999999, data None." in told.notes


def test_search_of_broken_trials_has_no_best():
    assert build(search([trial(0, "failed"), trial(1, "diverged", [0.4])], DEFAULTS)) is None


def test_trials_that_go_on_are_told_as_such():
    trials = [reached(0, 0.4, outcome="interrupted"), reached(1, 0.6, outcome="interrupted")]
    trials.append(reached(2, 0.9, outcome="diverged"))
    told = says(*trials)
    assert told.startswith("Trial 1 reached val/score 0.6 in epoch 1 of 1.")
    assert told.endswith("No trial has ended yet: this is the best so far.")
    assert format_gain(search(trials, DEFAULTS)) == (gain_by(1), "+0.2 (50 %)")
    told = says(reached(0, 0.4), *trials[1:])
    assert told.startswith("Trial 0 reached val/score 0.4")
    assert told.endswith("Trial 1, which has not ended, reported a better one: 0.6 in epoch 1.")
