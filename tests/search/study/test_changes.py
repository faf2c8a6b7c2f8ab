from searchlight.search.study.changes import UNSEEN, find_changes
from tests.search.trial_states import TrialStates

DATA, OTHER = [{"name": "digits", "digest": "a"}], [{"name": "digits", "digest": "b"}]


class Follower:
    """An observer, and what was new at each change."""

    def __init__(self):
        self.seen, self.found = UNSEEN, []

    def on_trial_changed(self, trial, is_over=False):
        begun, datasets, reports, outcome, reason, self.seen = find_changes(trial, self.seen, is_over)
        self.found.append((begun, datasets, [(epoch, r["metrics"]["loss"]) for epoch, r in reports], outcome, reason))


def test_changes_add_up_to_all_of_a_trial_however_often_it_is_seen():
    often, once = Follower(), Follower()
    trials = TrialStates(often)
    trials.start(0, {"lr": 0.5})
    trials.attributes[0]["datasets"] = DATA
    for epoch in (3, 4, 6, 10):
        trials.report(0, epoch, {"loss": epoch / 10})
    trials.tell(0)
    trials.attributes[0]["datasets"] = OTHER
    trials.end(0, "pruned", "not among the best")
    curve = [(3, 0.3), (4, 0.4), (6, 0.6), (10, 1.0)]
    assert often.found == [
        (True, [], [], "", ""),
        (False, DATA, curve[:1], "", ""),
        *[(False, [], [point], "", "") for point in curve[1:]],
        (False, [], [], "", ""),
        (False, OTHER, [], "pruned", "not among the best"),
    ]
    once.on_trial_changed(trials.get(0))
    assert once.found == [(True, OTHER, curve, "pruned", "not among the best")]
    once.on_trial_changed(trials.get(0), is_over=True)
    assert once.found[1][:4] == (False, [], [], ""), "nothing is new"


def test_divergence_in_a_repeated_epoch_is_a_new_report():
    follower = Follower()
    trials = TrialStates(follower)
    trials.start(0, {"lr": 0.5})
    for epoch in (1, 2, 3):
        trials.report(0, epoch, {"loss": epoch / 10})
    trials.attributes[0]["report/2"] = {"metrics": {"loss": 9.0}, "time": 0.0, "repeated": True}
    trials.attributes[0]["divergence"] = {"kind": "loss", "epoch": 2}
    trials.end(0, "diverged", "loss is nan")
    assert follower.found[-1] == (False, [], [(2, 9.0)], "diverged", "loss is nan")


def test_trial_that_did_not_begin_has_no_changes():
    follower = Follower()
    trials = TrialStates()
    trials.start(0, {})
    del trials.attributes[0]["config"]
    follower.on_trial_changed(trials.get(0), is_over=True)
    assert (follower.found, follower.seen) == ([(False, [], [], "", "")], UNSEEN)
