from search.config.objectives import Objective
from search.reporting.html.sections.best_trial import build, format_gain
from tests.search.reporting.html.page_studies import search, trial

DEFAULTS = {"lr": 0.01}


def says(*trials, first=DEFAULTS, **more):
    return build(search(trials, first, **more)).says


def test_the_gain_over_the_defaults_is_told_in_numbers():
    trials = [trial(0, scores=[0.4, 0.5]), trial(1, scores=[0.6, 0.75, 0.7], params={"lr": 0.02})]
    told = build(search(trials, DEFAULTS))
    assert "Trial 1 reached val/score 0.75 in epoch 2 of 3." in told.says
    assert "The task's defaults (trial 0) reached 0.5: the search gained 0.25 (50 %)." in told.says
    assert told.table == [["parameter", "best", "defaults", "searched in"], ["lr", "0.02", "0.01", "0.0001..0.1:log"]]
    assert "Not searched: epochs 9." in told.notes
    assert "1-2.pt" in told.notes
    assert format_gain(search(trials, DEFAULTS)) == "+0.25 (50 %)"


def test_of_a_loss_the_lower_value_is_the_gain():
    trials = [trial(0, scores=[0.5]), trial(1, scores=[0.4], params={"lr": 0.02})]
    lower = (Objective("val/score", "min"),)
    assert "the search gained 0.1 (20 %)" in says(*trials, objectives=lower)
    assert format_gain(search(trials, DEFAULTS, objectives=lower)) == "-0.1 (20 %)"


def test_defaults_that_no_trial_beat_are_told_as_such():
    trials = [trial(0, scores=[0.5]), trial(1, scores=[0.4], params={"lr": 0.02})]
    assert "These are the task's defaults: no other trial was better." in says(*trials)
    assert build(search(trials, DEFAULTS)).table[0] == ["parameter", "best", "searched in"]
    assert format_gain(search(trials, DEFAULTS)) == "none"


def test_defaults_that_were_stopped_early_are_compared_at_their_last_epoch_too():
    told = says(
        trial(0, "pruned", [0.4], reason="not among the best at epoch 1"),
        trial(1, scores=[0.3, 0.5, 0.8], params={"lr": 0.02}),
    )
    assert "That trial was stopped after epoch 1 (not among the best at epoch 1)" in told
    assert "by then, the best one had 0.3, 0.1 (25 %) worse" in told


def test_defaults_that_broke_off_are_no_measure_and_that_is_said():
    best = trial(1, scores=[0.5], params={"lr": 0.02})
    silent = says(trial(0, "diverged", reason="train/loss is not finite"), best)
    assert "nothing to compare it with: the trial diverged (train/loss is not finite)." in silent
    assert format_gain(search([trial(0, "diverged"), best], DEFAULTS)) == ""
    ahead = says(trial(0, "diverged", [0.7], reason="its loss rose"), best)
    assert "reached 0.7: no worse, but that trial diverged (its loss rose)." in ahead


def test_without_defaults_nothing_is_claimed():
    best = trial(0, scores=[0.5], params={"lr": 0.02})
    assert "were not tried" in says(best, first=None)
    assert "were not tried" in says(best, first={})  # a function's space has no defaults
    assert "were not tried" in says(best, first=DEFAULTS)  # interrupted before they began


def test_where_the_sampler_chose_for_a_default_outside_of_what_is_searched_there_are_no_defaults():
    trials = [trial(0, scores=[0.4], params={"lr": 0.01, "precision": "bf16"}), trial(1, scores=[0.5], params={})]
    assert "were not tried, as where one lies outside" in says(*trials, first={"lr": 0.01})


def test_a_parameter_that_did_not_apply_to_the_defaults_is_a_dash():
    trials = [trial(0, scores=[0.4]), trial(1, scores=[0.5], params={"lr": 0.02, "precision": "fp16"})]
    assert build(search(trials, DEFAULTS)).table[2] == ["precision", "fp16", "-", "fp32,bf16,fp16"]


def test_there_is_no_best_trial_if_all_broke_off():
    assert build(search([trial(0, "failed"), trial(1, "diverged", [0.4])], DEFAULTS)) is None


def test_as_long_as_no_trial_has_ended_the_best_so_far_is_told_as_that():
    trials = [trial(0, "interrupted", [0.4]), trial(1, "interrupted", [0.6], {"lr": 0.02}), trial(2, "diverged", [0.9])]
    told = says(*trials)
    assert told.startswith("Trial 1 reached val/score 0.6 in epoch 1 of 1.")
    assert told.endswith("No trial has ended yet: this is the best so far.")
    assert format_gain(search(trials, DEFAULTS)) == "+0.2 (50 %)"


def test_a_trial_that_goes_on_and_is_ahead_is_named():
    told = says(trial(0, scores=[0.4]), trial(1, "interrupted", [0.6], {"lr": 0.02}))
    assert told.startswith("Trial 0 reached val/score 0.4")
    assert told.endswith("Trial 1, which has not ended, is ahead of it with 0.6.")


def test_what_was_not_searched_has_all_of_its_digits():
    best = trial(0, scores=[0.5])
    best.user_attrs["config"].update(loss_scale=65536.0, decay=0.9999999, data=None)
    assert "Not searched: epochs 9, loss_scale 65536, decay 0.9999999, data None." in build(search([best])).notes
