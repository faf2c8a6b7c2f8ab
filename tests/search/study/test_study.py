from functools import partial

import optuna
import pytest
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from searchlight.search.errors import UsageError
from searchlight.search.samplers.factory import create_sampler
from searchlight.search.space.objectives import Objective
from searchlight.search.study.record import load_search
from searchlight.search.study.study import create_study
from searchlight.search.study.trial import TrialCache, get_best_epoch, get_best_value, get_outcome, get_reports
from tests.search.objectives import VAL_LOSS
from tests.search.study.played_studies import SAMPLERS, SPACE, complete

BOTH = (VAL_LOSS, Objective("speed", "max"))


class Watching(RandomSampler):
    """Notes the trials that it is shown."""

    def __init__(self):
        super().__init__(seed=0)
        self.shown = []

    def infer_relative_search_space(self, study, trial):
        self.shown = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        return super().infer_relative_search_space(study, trial)


@pytest.fixture
def make_study(tmp_path):
    """Makes a study with a sampler in a folder of its own."""
    locks = []

    def make(sampler=RandomSampler, objectives=(VAL_LOSS,)):
        folder = tmp_path / f"study-{len(locks)}"
        folder.mkdir()
        study, lock = create_study(folder, sampler, objectives)
        locks.append(lock)
        return study

    yield make
    for lock in locks:
        lock.close()


@pytest.fixture
def study(make_study):
    return make_study()


def report(study, number, epoch, value):
    study.report(number, epoch, value, {"metrics": {"val/loss": value}, "checkpoint": f"{number}-{epoch}.pt"})


def test_completed_trial_has_its_best_report_as_its_value(study):
    number, _ = study.ask(SPACE)
    for epoch, value in enumerate([0.5, 0.2, 0.3], start=1):
        report(study, number, epoch, value)
    study.end(number, "completed")
    trial = study.get_trial(number)
    assert (trial.state, trial.value, get_outcome(trial)) == (TrialState.COMPLETE, 0.2, "completed")
    assert get_best_epoch(trial, VAL_LOSS) == 2
    assert get_best_value(trial, Objective("val/loss", "max")) == 0.5
    assert get_reports(trial)[3]["checkpoint"] == "0-3.pt"


@pytest.mark.parametrize(
    ("outcome", "state", "constraints", "details"),
    [
        ("pruned", TrialState.PRUNED, {}, {}),
        ("diverged", TrialState.PRUNED, {"diverged": 1.0}, {"divergence": {"kind": "loss", "epoch": 3}}),
        (
            "infeasible",
            TrialState.PRUNED,
            {"memory": 0.5},
            {"infeasibility": {"constraint": "memory", "violation": 0.5, "in_window": True}},
        ),
        ("failed", TrialState.FAIL, {}, {}),
    ],
)
def test_outcome_sets_state_reason_and_constraints(study, outcome, state, constraints, details):
    number, _ = study.ask(SPACE)
    study.end(number, outcome, "because", details)
    trial = study.get_trial(number)
    assert (trial.state, get_outcome(trial), trial.user_attrs["reason"]) == (state, outcome, "because")
    assert trial.constraints == constraints
    assert details.items() <= trial.user_attrs.items()


def test_cache_computes_a_trial_again_once_it_or_its_gang_changed(study):
    computed = []
    cache = TrialCache(lambda trial, is_live: computed.append(trial.number) or (len(trial.user_attrs), is_live))
    for _ in range(3):
        study.ask(SPACE)
    assert list(cache.get_all(study.get_all_trials(), {2})) == [(0, False), (0, False), (0, True)]
    report(study, 1, 1, 0.5)
    study.ask(SPACE)
    assert list(cache.get_all(study.get_all_trials(), {0})) == [(0, True), (1, False), (0, False), (0, False)]
    assert cache.get(study.get_trial(0), {0}) == (0, True)
    assert sorted(computed) == [0, 0, 1, 1, 2, 2, 3]
    report(study, 0, 1, 0.5)
    assert [cache.get(study.get_trial(n), {3}) for n in (0, 3)] == [(1, False), (0, True)]


def test_tpe_sees_waiting_trials_as_pruned(make_study):
    sampler = Watching()
    study = make_study(lambda _: sampler)
    study.extrapolates = False
    waiting, _ = study.ask(SPACE)
    report(study, waiting, 1, 0.5)
    live, _ = study.ask(SPACE)
    report(study, live, 1, 0.4)
    study.live.add(live)
    study.ask(SPACE)
    assert [t.state for t in sampler.shown] == [TrialState.PRUNED, TrialState.RUNNING]
    assert [t.state for t in study.get_trials()] == [TrialState.RUNNING] * 3, "what is stored does not change"


def test_tpe_sees_a_complete_trial_at_the_last_rung_that_enough_have_reached(make_study):
    sampler = Watching()
    study = make_study(lambda _: sampler)
    study.extrapolates, study.fewest_at_rung = False, 3

    def show():
        study.ask(SPACE)
        return [(t.state.name, t.value, t.intermediate_values) for t in sampler.shown if t.intermediate_values]

    def end(outcome, *values):
        number, _ = study.ask(SPACE)
        for epoch, value in enumerate(values, start=1):
            report(study, number, epoch, value)
        if outcome is not None:
            study.end(number, outcome)

    end("completed", 0.9, 0.8, 0.7)
    end("diverged", 0.1, 0.1, 0.1)
    end(None, 0.5)
    assert show()[0] == ("COMPLETE", 0.7, {1: 0.9, 2: 0.8, 3: 0.7}), "too few to choose from"
    end(None, 0.6)
    completed, diverged, *_ = show()
    assert completed == ("PRUNED", None, {1: 0.9})
    assert diverged[2] == {1: 0.1, 2: 0.1, 3: 0.1}
    end(None, 0.5, 0.4)
    end(None, 0.5, 0.4)
    assert show()[0] == ("PRUNED", None, {1: 0.9, 2: 0.8})
    end("completed", 0.9, 0.8, 0.6)
    end("completed", 0.9, 0.8, 0.5)
    assert show()[0] == ("COMPLETE", 0.7, {1: 0.9, 2: 0.8, 3: 0.7})
    assert study.get_trial(0).state == TrialState.COMPLETE, "what is stored does not change"


def test_tpe_sees_a_trial_at_its_rung_while_others_have_reached_none(make_study):
    sampler = Watching()
    study = make_study(lambda _: sampler)
    study.extrapolates, study.fewest_at_rung = False, 3
    study.compared = lambda trial: {epoch // 2: value for epoch, value in trial.intermediate_values.items()}
    for values in ([0.5, 0.4], [0.9], [0.9]):  # rungs at 2 epochs, of which two trials have one
        number, _ = study.ask(SPACE)
        for epoch, value in enumerate(values, start=1):
            report(study, number, epoch, value)
        study.end(number, "pruned")
    study.ask(SPACE)
    assert [t.intermediate_values for t in sampler.shown[:3]] == [{0: 0.5, 1: 0.4}, {0: 0.9}, {0: 0.9}]


def test_other_samplers_see_stopped_trials_at_their_expected_ends(make_study):
    sampler = Watching()
    study = make_study(lambda _: sampler)
    assert study.extrapolates
    assert not make_study(lambda _: TPESampler()).extrapolates
    curves = [[0.9, 0.6, 0.5], [0.8, 0.7], [0.4], [0.3, 0.2, 0.1]]
    for outcome, curve in zip(("completed", "pruned", "waiting", "diverged"), curves, strict=True):
        number, _ = study.ask(SPACE)
        for epoch, value in enumerate(curve, start=1):
            report(study, number, epoch, value)
        if outcome != "waiting":
            study.end(number, outcome)
    study.ask(SPACE)
    assert {t.state for t in sampler.shown} == {TrialState.COMPLETE}
    assert [t.value for t in sampler.shown] == pytest.approx([0.5, 0.6, 0.1, 0.6])


def test_sampler_of_two_objectives_sees_all_results_as_points(make_study, tmp_path):
    sampler = Watching()
    study = make_study(lambda _: sampler, BOTH)
    for outcome, *points in (
        ("completed", (0.5, 10.0)),
        ("pruned", (0.4, 20.0), (0.6, 30.0)),
        ("diverged", (0.1, 90.0)),
        ("failed", (0.2, 40.0)),
        ("waiting", (0.3, 15.0)),
    ):
        number, _ = study.ask(SPACE)
        for epoch, (loss, speed) in enumerate(points, start=1):
            study.report(number, epoch, loss, {"metrics": {"val/loss": loss, "speed": speed}})
        if outcome != "waiting":
            study.end(number, outcome)
    study.ask(SPACE)
    completed, pruned, diverged, failed, waiting = sampler.shown
    assert [t.values for t in (completed, pruned, waiting)] == [[0.5, 10.0], [0.4, 20.0], [0.3, 15.0]]
    assert diverged.values == [0.5, 10.0], "the worst of each objective"
    assert {t.state for t in (completed, pruned, diverged, waiting)} == {TrialState.COMPLETE}
    assert (diverged.constraints, failed.state) == ({}, TrialState.FAIL)
    assert load_search(tmp_path / "study-0").objectives == BOTH


def test_report_that_a_dying_search_did_not_rank_is_ranked(study):
    number, _ = study.ask(SPACE)
    for epoch, value in enumerate([0.5, float("nan")], start=1):
        study.record_report(number, epoch, {"metrics": {"val/loss": value}, "checkpoint": None})
    study.repair_reports()
    assert study.get_trial(number).intermediate_values == {1: 0.5}


def test_optuna_itself_reads_and_continues_the_journal(study, tmp_path):
    number, _ = study.ask(SPACE)
    complete(study, number, 0.5)
    journal = tmp_path / "study-0" / "study.journal"
    journal.with_name("study.journal.lock").unlink()  # Optuna takes it for a lock of its own, and waits
    loaded = optuna.load_study(study_name="study-0", storage=JournalStorage(JournalFileBackend(str(journal))))
    assert loaded.best_value == 0.5
    assert loaded.ask().number == 1


def test_enqueued_trial_comes_first_and_counts_once_it_has_begun(study, tmp_path):
    study.enqueue({"lr": 0.05, "precision": "bf16"})
    assert study.get_trials() == []
    assert load_search(tmp_path / "study-0").trials == []
    assert study.ask(SPACE) == (0, {"precision": "bf16", "lr": 0.05})


def test_search_knows_when_each_of_its_drivers_ran(study):
    study.record_driver_start(1.0)
    study.record_driver_end(2.0)
    study.record_driver_start(3.0)
    assert study.get_record().drivers == [(1.0, 2.0), (3.0, None)]


def test_missing_search_is_refused_with_its_path(tmp_path):
    with pytest.raises(UsageError, match=r"name must be a search in .*, but there is no .*study\.journal"):
        load_search(tmp_path / "nothing")


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_copy_begins_with_its_values_and_samplers_continue(make_study, sampler):
    made = make_study(partial(create_sampler, sampler, 0))
    for _ in range(3):
        number, _ = made.ask(SPACE)
        report(made, number, 1, 0.1 * number)
    expected = made.get_next_number()
    number = made.create_copy(SPACE, {"precision": "bf16", "lr": 0.01}, {"config": {"lr": 0.01}, "copied_from": 1})
    assert number == expected == 3
    copy = made.get_trial(number)
    assert (copy.state, copy.params) == (TrialState.RUNNING, {"precision": "bf16", "lr": 0.01})
    assert copy.user_attrs == {"config": {"lr": 0.01}, "copied_from": 1}
    report(made, number, 2, 0.05)
    made.end(number, "completed")
    assert made.get_trial(number).value == 0.05
    assert made.ask(SPACE)[0] == 4
