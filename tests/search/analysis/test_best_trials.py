from search.analysis.best_trials import count_outcomes, find_best


def test_outcomes_are_counted_by_name(trials):
    assert count_outcomes(trials) == dict.fromkeys(["completed", "pruned", "diverged", "failed", "interrupted"], 1)


def test_the_best_comes_from_completed_and_pruned_trials_with_the_checkpoint_of_its_report(trials):
    best = find_best(trials, "max")
    assert (best.trial_id, best.value, best.checkpoint) == (1, 0.9, "1-2.pt")
    assert best.config["inner"] == {"kind": "a"}
    assert find_best(trials, "min").value == 0.1
    assert find_best(trials[2:], "max") is None
