import json
import math
from functools import partial

import optuna
import pytest
from optuna.samplers import RandomSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from search.config.objectives import Objective
from search.config.search_space import resolve_space
from search.errors import UsageError
from search.samplers.factory import create_sampler
from search.study.record import load_search
from search.study.study import create_study
from search.study.trial import get_best_epoch, get_best_value, get_outcome, get_reports
from tests.search.objectives import VAL_LOSS
from trainables.task import TaskConfig, searchable


class Config(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)


SPACE = resolve_space(Config, {}, {})


class Watching(RandomSampler):
    """Notes the states in which it is shown the trials."""

    def __init__(self):
        super().__init__(seed=0)
        self.shown: list[list[TrialState]] = []

    def infer_relative_search_space(self, study, trial):
        self.shown.append([t.state for t in study.get_trials(deepcopy=False) if t.number != trial.number])
        return super().infer_relative_search_space(study, trial)


@pytest.fixture
def study(tmp_path):
    made, lock = create_study(tmp_path, RandomSampler, [VAL_LOSS])
    yield made
    lock.close()


def report(study, number, epoch, value):
    study.report(number, epoch, value, {"metrics": {"val/loss": value}, "checkpoint": f"{number}-{epoch}.pt"})


def test_a_completed_trial_has_its_best_report_as_its_value(study):
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
    ("outcome", "state", "broken"),
    [
        ("pruned", TrialState.PRUNED, {}),
        ("diverged", TrialState.PRUNED, {"diverged": 1.0}),
        ("failed", TrialState.FAIL, {}),
    ],
)
def test_other_ends_are_told_as_what_they_are(study, outcome, state, broken):
    number, _ = study.ask(SPACE)
    study.end(number, outcome, "because")
    trial = study.get_trial(number)
    assert (trial.state, get_outcome(trial), trial.user_attrs["reason"]) == (state, outcome, "because")
    assert trial.constraints == broken


def test_a_diverged_trial_keeps_its_kind_and_its_epoch(study):
    number, _ = study.ask(SPACE)
    study.end(number, "diverged", "because", {"kind": "loss", "epoch": 3})
    assert study.get_trial(number).user_attrs["divergence"] == {"kind": "loss", "epoch": 3}


def test_a_sampler_sees_a_trial_that_waits_at_a_rung_as_pruned_and_a_live_one_as_running(tmp_path):
    sampler = Watching()
    study, lock = create_study(tmp_path, lambda _: sampler, [VAL_LOSS])
    waiting, _ = study.ask(SPACE)
    report(study, waiting, 1, 0.5)
    live, _ = study.ask(SPACE)
    report(study, live, 1, 0.4)
    study.live.add(live)
    study.ask(SPACE)
    assert sampler.shown[-1] == [TrialState.PRUNED, TrialState.RUNNING]
    assert [t.state for t in study.get_trials()] == [TrialState.RUNNING] * 3, "what is stored does not change"
    lock.close()


def distance_after_30_waiting_trials(folder, report_them):
    """Mean distance, in powers of ten, of the next suggestions from the best learning rate, 1e-2."""
    folder.mkdir()
    study, lock = create_study(folder, partial(create_sampler, "tpe", 0), [VAL_LOSS])
    for _ in range(30):
        number, values = study.ask(SPACE)
        if report_them:
            report(study, number, 1, abs(math.log10(values["lr"]) + 2))
    distances = [abs(math.log10(study.ask(SPACE)[1]["lr"]) + 2) for _ in range(20)]
    lock.close()
    return sum(distances) / len(distances)


def test_tpe_learns_from_trials_that_wait(tmp_path):
    blind = distance_after_30_waiting_trials(tmp_path / "blind", report_them=False)
    seeing = distance_after_30_waiting_trials(tmp_path / "seeing", report_them=True)
    assert seeing < 0.7 * blind


def test_an_enqueued_trial_comes_first_and_counts_only_once_it_has_begun(study):
    study.enqueue({"lr": 0.05, "precision": "bf16"})
    assert study.get_trials() == []
    assert study.ask(SPACE) == (0, {"precision": "bf16", "lr": 0.05})


def test_a_second_driver_is_refused(tmp_path):
    _, lock = create_study(tmp_path, RandomSampler, [VAL_LOSS])
    with pytest.raises(UsageError, match="must not be running, but another process has it open"):
        create_study(tmp_path, RandomSampler, [VAL_LOSS])
    lock.close()


def test_optuna_itself_reads_the_journal(study, tmp_path):
    number, _ = study.ask(SPACE)
    report(study, number, 1, 0.5)
    study.end(number, "completed")
    loaded = optuna.load_study(
        study_name=tmp_path.name, storage=JournalStorage(JournalFileBackend(str(tmp_path / "study.journal")))
    )
    assert loaded.best_value == 0.5
    study.enqueue({"lr": 0.05})  # which has not begun
    searched = load_search(tmp_path)
    trials, objectives = searched.trials, searched.objectives
    assert (len(trials), objectives) == (1, (VAL_LOSS,))


def test_a_nan_metric_beside_the_objective_survives_the_journal(study, tmp_path):
    number, _ = study.ask(SPACE)
    study.report(number, 1, 0.5, {"metrics": {"train/loss": float("nan")}, "checkpoint": ""})
    value = get_reports(load_search(tmp_path).trials[0])[1]["metrics"]["train/loss"]
    assert json.dumps(value) == "NaN"


def test_reading_a_search_that_is_not_there_says_so(tmp_path):
    with pytest.raises(UsageError, match=r"name must be a search in .*, but there is no .*study\.journal"):
        load_search(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["tpe", "gp", "cmaes", "qmc", "nsga2", "random"])
def test_every_sampler_of_the_command_line_searches_and_repeats_with_its_seed(name, tmp_path):
    def search(folder):
        folder.mkdir()
        study, lock = create_study(folder, partial(create_sampler, name, 1), [VAL_LOSS])
        drawn = []
        for _ in range(12):
            number, values = study.ask(SPACE)
            report(study, number, 1, values["lr"])
            study.end(number, "completed")
            drawn.append(values)
        lock.close()
        return drawn

    first = search(tmp_path / "first")
    assert first == search(tmp_path / "second")
    assert len({values["lr"] for values in first}) > 6


@pytest.mark.parametrize("sampler", ["tpe", "gp", "cmaes", "qmc", "nsga2", "random"])
def test_a_copy_begins_with_all_that_it_has_and_samplers_go_on_beside_it(tmp_path, sampler):
    made, lock = create_study(tmp_path, partial(create_sampler, sampler, 0), [VAL_LOSS])
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
    lock.close()
