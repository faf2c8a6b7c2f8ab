"""Which runs confirm a search, and that a searcher trains them after it and apart from it."""

import random
from dataclasses import replace

import pytest
from optuna.trial import TrialState

from searchlight.search.execution.confirmation import ConfirmationPlan
from searchlight.search.execution.report_handler import SearchLimits
from searchlight.search.execution.searcher import StudySearcher
from searchlight.search.schedulers.asha import ASHAScheduler
from searchlight.search.space.objectives import Objective
from searchlight.search.study.record import load_search
from searchlight.search.study.trial import get_outcome, is_confirming
from searchlight.trainables.worker.messages import EpochReport
from tests.search.execution.searcher_harness import Config, Gangs, end
from tests.search.objectives import VAL_LOSS

DEFAULTS = Config(precision="fp32").model_dump(mode="json", round_trip=True)


def make_plan(**changes):
    return replace(ConfirmationPlan((VAL_LOSS,), seed=3, runs=8, defaults=DEFAULTS), **changes)


class Search(Gangs):
    """A search over `lr` on one gang. The value of a run is lr / epoch, plus a draw from its seed."""

    def __init__(self, folder, plan, trials=6, rungs=(1, 3), keep=10):
        self.plan, self.keep = plan, keep
        super().__init__(folder, ASHAScheduler(rungs, 3, "min"), trials, {"precision": "fp32"}, {})

    def begin(self, attempt):
        """Begin a driver, which knows nothing of an earlier one but the study."""
        self.study.live.clear()
        limits = SearchLimits(self.trials, self.keep)
        over = self.study, self.space, self.schedule, limits, self.folder, attempt, [self], self.plan
        self.searcher = StudySearcher(*over)
        self.searcher.recover()

    def loss(self, segment, epoch):
        seed = segment.config["seed"]
        return segment.config["lr"] / epoch + (random.Random(seed).random() / 100 if seed else 0.0)

    def spend(self, asked, most=1000):
        name, segment = asked
        for epoch in range(segment.epoch + 1, min(segment.epoch + most, segment.until) + 1):
            loss = self.loss(segment, epoch)
            done = epoch == segment.until
            self.hand_on(name, EpochReport(epoch, {"val/loss": loss}, f"{segment.folder}/{epoch}.pt", {}, done))

    @property
    def confirming(self):
        return [trial for trial in self.study.get_trials() if is_confirming(trial)]


@pytest.fixture
def play(tmp_path):
    """Returns a search with the plan, not yet played."""
    searches = []

    def play(**given):
        plan = given.pop("plan", make_plan())
        searches.append(Search(tmp_path / "one", plan, **given))
        return searches[-1]

    (tmp_path / "one").mkdir()
    yield play
    for search in searches:
        search.lock.close()


def about(trials):
    return [(trial.user_attrs["confirms"]["trial"], trial.user_attrs["confirms"]["round"]) for trial in trials]


def test_finalists_and_defaults_train_in_full_under_shared_seeds(play):
    search = play()
    search.run()
    runs = search.confirming
    assert [get_outcome(run) for run in runs] == ["completed"] * len(runs)
    assert [max(run.intermediate_values) for run in runs] == [3] * len(runs)
    seeds = {
        index: {run.user_attrs["config"]["seed"] for run in runs if about([run])[0][1] == index} for index in (0, 1)
    }
    assert all(len(of_round) == 1 for of_round in seeds.values())
    assert seeds[0] != seeds[1]
    assert 0 not in seeds[0] | seeds[1], "the search's own seed counts for nothing"
    first = [config for config, index in about(runs) if index == 0]
    assert len(first) == 4, "three finalists and the defaults in eight runs"
    assert None in first
    by_number = {trial.number: trial for trial in search.study.get_trials()}
    for run in runs:
        number = run.user_attrs["confirms"]["trial"]
        config = DEFAULTS if number is None else by_number[number].user_attrs["config"]
        assert {**run.user_attrs["config"], "seed": 0} == {**config, "seed": 0}


def test_runs_begin_with_the_micro_batches_that_fit(play):
    search = play(trials=3)
    while len(search.study.get_trials()) < 3:
        search.spend(search.ask())
    for number in range(3):
        search.study.record_micro_batches(number, {"accumulation": 4})
    search.run()
    splits = {about([run])[0][0]: run.user_attrs.get("micro_batches") for run in search.confirming}
    assert splits.pop(None) is None, "nobody knows what the defaults need"
    assert splits
    assert all(split == {"accumulation": 4} for split in splits.values())


def test_confirmation_ends_if_the_task_ignores_its_seed(play):
    search = play(plan=make_plan(runs=24))
    search.loss = lambda segment, epoch: segment.config["lr"] / epoch
    search.run()
    assert [index for _, index in about(search.confirming)] == [0] * 5 + [1] * 2, "two configs with two runs are enough"
    assert search.plan.is_complete(search.study.get_trials())


def test_finalists_are_those_that_came_furthest_then_the_best(play):
    search = play(trials=9)
    search.run()
    finalists = {config for config, _ in about(search.confirming)} - {None}
    searched = search.study.get_searched_trials()
    ranked = sorted(searched, key=lambda t: (-max(t.intermediate_values), min(t.intermediate_values.values())))
    assert finalists == {trial.number for trial in ranked[:3]}


def test_search_goes_on_apart_from_its_confirming_runs(play):
    search = play()
    search.run()
    searched = search.study.get_searched_trials()
    assert len(searched) == 6
    shown = search.study._study.get_trials()
    assert [trial.number for trial in shown] == [trial.number for trial in searched]
    assert search.study._study.best_trial.number in {trial.number for trial in searched}
    assert {run.state for run in search.confirming} == {TrialState.PRUNED}
    search.lock.close()
    record = load_search(search.folder)
    assert [trial.number for trial in record.trials] == [trial.number for trial in searched]
    assert [trial.number for trial in record.confirming_runs] == [trial.number for trial in search.confirming]


def test_more_trials_are_searched_after_a_confirmation(play):
    search = play()
    search.run()
    before = len(search.confirming)
    search.trials = 12
    search.begin("b")
    search.run()
    assert len(search.study.get_searched_trials()) == 12
    assert len(search.confirming) >= before
    assert search.plan.is_complete(search.study.get_trials())
    runs = about(search.confirming)
    assert len(runs) == len(set(runs)), "no run is done twice"
    searched = search.study.get_searched_trials()
    assert searched[-1].number > 12
    assert [search.searcher.progress.get_progress(trial).index for trial in searched] == list(range(12))


def test_driver_that_dies_leaves_runs_for_the_next(play):
    search = play()
    while not search.confirming:
        search.spend(search.ask())
    asked = search.ask()
    search.spend(asked, most=1)
    assert not search.plan.is_complete(search.study.get_trials())
    search.begin("b")
    _, segment = again = search.ask()
    assert (segment.trial, segment.epoch) == (asked[1].trial, 1)
    assert search.searcher.limits.search_over.is_set(), "so no budget is said to end the search"
    search.spend(again)
    search.run()
    assert search.plan.is_complete(search.study.get_trials())


def test_best_run_of_each_config_keeps_its_checkpoint(play):
    search = play(keep=1)
    while (asked := search.ask()) is not None:
        search.train(asked, [search.loss(asked[1], e) for e in range(asked[1].epoch + 1, asked[1].until + 1)])
    kept = {int(path.parent.name) for path in search.folder.glob("checkpoints/*/*.pt")}
    best = {}
    for run in search.confirming:
        value = min(run.intermediate_values.values())
        config = run.user_attrs["confirms"]["trial"]
        best[config] = min(best.get(config, (value, run.number)), (value, run.number))
    runs = {run.number for run in search.confirming}
    assert kept & runs == {number for _, number in best.values()}
    assert len(kept - runs) == 1


def test_diverged_finalist_gets_no_further_runs(play):
    search = play()
    while not search.confirming:
        search.spend(search.ask())
    asked = search.ask()
    while (which := search.study.get_trial(asked[1].trial).user_attrs["confirms"]["trial"]) is None:
        search.spend(asked)
        asked = search.ask()
    end(search.searcher, asked[0], "diverged", "val/loss is nan")
    expected = search.plan.count_runs(search.study.get_trials())
    while (asked := search.ask()) is not None:
        search.spend(asked)
    assert [config for config, _ in about(search.confirming)].count(which) == 1
    assert len(search.confirming) == expected
    assert search.plan.is_complete(search.study.get_trials())


@pytest.mark.parametrize("runs", [9, 15])
def test_number_of_runs_is_known_as_the_first_one_begins(play, runs):
    search = play(plan=make_plan(runs=runs))
    while not search.confirming:
        search.spend(search.ask())
    expected = search.plan.count_runs(search.study.get_trials())
    search.run()
    assert len(search.confirming) == expected


def test_front_of_several_objectives_is_not_halved(play):
    search = play(plan=None)
    search.run()
    trials, plan = search.study.get_trials(), make_plan(runs=15)
    one, two = (replace(plan, objectives=every) for every in ((VAL_LOSS,), (VAL_LOSS, Objective("val/loss", "max"))))
    assert [one.count_runs(trials), two.count_runs(trials)] == [13, 15]


@pytest.mark.parametrize("changes", [{"defaults": None}, {"runs": 4}, {"runs": None}], ids=str)
def test_each_config_of_two_rounds_meets_another_one(play, changes):
    search = play(plan=make_plan(**changes))
    search.run()
    rounds = [index for _, index in about(search.confirming)]
    assert all(rounds.count(index) >= 2 for index in (0, 1))
    assert len(rounds) <= (search.plan.runs or 6)


def test_runs_without_defaults_are_all_for_finalists(play):
    search = play(plan=make_plan(defaults=None, runs=6))
    search.run()
    runs = about(search.confirming)
    assert len(runs) == 6
    assert len({config for config, _ in runs}) == 3


@pytest.mark.parametrize(("limit", "finalists"), [(9, 2), (None, 3)])
def test_runs_of_a_cut_off_search_cost_a_fifth_of_it(play, limit, finalists):
    search = play(plan=None, trials=60, rungs=(1, 9))
    while len(search.study.get_searched_trials()) < 60:
        search.spend(search.ask(), most=1)
    trials = search.study.get_trials()
    assert max(max(trial.intermediate_values, default=0) for trial in trials) == 2
    due = make_plan(runs=None, limit=limit).next_runs(trials)
    assert len({each.run.trial for each in due}) == finalists + 1, "and the defaults"


def test_run_of_an_extended_trial_is_as_long_as_that_trial(play):
    search = play(plan=make_plan(defaults=None), trials=2)
    search.searcher.controls.extended = {0: 2}
    while not search.confirming:
        asked = search.ask()
        search.spend(asked, most=2)
    search.searcher.on_trial_complete(asked[0], None, error=True)  # it continues in another gang
    search.run()
    epochs = {about([run])[0][0]: max(run.intermediate_values) for run in search.confirming}
    assert epochs == {0: 5, 1: 3}
    assert [get_outcome(run) for run in search.confirming] == ["completed"] * 8


def test_run_of_a_trial_that_ended_before_its_extension_has_the_planned_length(play):
    search = play(plan=make_plan(defaults=None), trials=2)
    while not search.confirming:
        asked = search.ask()
        search.searcher.controls.extended = {0: 2} if search.confirming else {}
        search.spend(asked, most=2)
    search.searcher.on_trial_complete(asked[0], None, error=True)
    search.run()
    assert {max(run.intermediate_values) for run in search.confirming} == {3}


def test_single_trial_without_defaults_is_not_confirmed(play):
    search = play(plan=make_plan(defaults=None), trials=1)
    search.run()
    assert search.confirming == []


def test_data_seed_changes_with_the_seed(play):
    search = play(plan=None)
    search.run()
    trials = search.study.get_trials()
    for trial in trials:
        trial.user_attrs["config"]["data_seed"] = 7
    runs = make_plan(defaults=None).next_runs(trials)
    assert len(runs) > 1
    assert all(due.config["data_seed"] == due.config["seed"] == due.run.seed for due in runs)


def test_new_seeds_follow_from_the_seed_of_the_search(play):
    search = play(plan=None)
    search.run()
    trials = search.study.get_trials()
    seeds = [{due.run.seed for due in make_plan(seed=seed).next_runs(trials)} for seed in (3, 3, 4)]
    assert seeds[0] == seeds[1] != seeds[2]
