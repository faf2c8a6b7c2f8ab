"""The searcher where trials are measured in samples or GPU-seconds, or have lengths of their own."""

import pytest
from optuna.samplers import RandomSampler

from search.config.search_space import resolve_space
from search.schedulers.asha import ASHAScheduler
from search.schedulers.asha_stopping import ASHAStoppingScheduler
from search.study.study import create_study
from search.study.trial import get_outcome, get_reports
from tests.search.execution.fake_tune import Gangs
from tests.search.objectives import VAL_LOSS
from trainables.task import TaskConfig, searchable
from trainables.worker.messages import EpochReport, SegmentBudget


class Config(TaskConfig):
    lr: float = searchable(0.5, low=0.0, high=1.0)


class Costly(Gangs):
    """An epoch costs 10 samples, and 2 GPU-seconds in fp32 or 1 in bf16."""

    def __init__(self, folder, schedule, trials, fixed, searched):
        study, self.lock = create_study(folder, lambda number: RandomSampler(seed=number), [VAL_LOSS])
        super().__init__(study, resolve_space(Config, fixed, searched), schedule, trials, folder)

    def train(self, asked, most=1000):
        """Report epochs as a worker does, until the stretch ends or after `most` of them; the number of the trial."""
        name, segment = asked
        seconds = 2.0 if segment.config["precision"] == "fp32" else 1.0
        budget = segment.budget
        for epoch in range(segment.epoch + 1, segment.epoch + most + 1):
            costs = {"samples": 10.0, "gpu_seconds": seconds}
            budget = budget and budget.add_epoch(epoch, costs)
            done = epoch == segment.until or (budget is not None and budget.is_spent)
            metrics = {"val/loss": segment.config["lr"] / epoch}
            self.report(name, EpochReport(epoch, metrics, f"/nowhere/{epoch}.pt", costs, done))
            if done:
                break
        return segment.trial

    def run(self):
        """The whole search on one gang; the epochs of each trial."""
        while (asked := self.ask()) is not None:
            self.train(asked)
        return [max(trial.intermediate_values) for trial in self.study.get_trials()]


@pytest.fixture
def gangs(tmp_path):
    made = []

    def make(schedule, trials=6, searched=None, **fixed):
        made.append(Costly(tmp_path, schedule, trials, fixed, searched or {}))
        return made[-1]

    yield make
    for gang in made:
        gang.lock.close()


def test_a_stretch_carries_what_its_trial_may_spend_beside_its_epochs(gangs):
    made = gangs(ASHAScheduler((20.0, 60.0), 3, "min", "samples"), precision="fp32", epochs=9)
    first = made.ask()
    assert first[1].until == 9
    assert first[1].budget == SegmentBudget("samples", 0, 0.0, 20.0)
    for asked in (first, made.ask(), made.ask()):
        made.train(asked)
    _, segment = made.ask()
    assert segment.epoch == 2
    assert segment.budget == SegmentBudget("samples", 2, 20.0, 60.0)
    assert segment.checkpoints[0] == "/nowhere/2.pt"


def test_what_an_epoch_took_is_kept_with_its_report(gangs):
    made = gangs(ASHAScheduler((20.0,), 3, "min", "samples"), precision="bf16", epochs=9)
    made.train(made.ask())
    reports = get_reports(made.study.get_trial(0))
    assert [(report["samples"], report["gpu_seconds"]) for report in reports.values()] == [(10.0, 1.0)] * 2
    assert made.searcher.reports.spent == 20.0


@pytest.mark.parametrize(("limit", "epochs"), [(50.0, 5), (55.0, 6), (1e9, 9)])
def test_a_trial_is_completed_where_it_has_got_all_that_it_gets_or_at_its_last_epoch(gangs, limit, epochs):
    made = gangs(ASHAScheduler.without_stopping(limit, "min", "samples"), trials=1, precision="fp32", epochs=9)
    assert made.run() == [epochs]
    assert get_outcome(made.study.get_trial(0)) == "completed"


def test_a_faster_precision_has_twice_the_epochs_at_each_rung(gangs):
    schedule = ASHAScheduler((4.0, 12.0), 3, "min", "gpu-seconds")
    made = gangs(schedule, trials=12, searched={"precision": "fp32,bf16"}, epochs=99)
    made.run()
    reached = {(trial.params["precision"], max(trial.intermediate_values)) for trial in made.study.get_trials()}
    assert reached >= {("fp32", 2), ("bf16", 4)}
    assert reached <= {("fp32", 2), ("bf16", 4), ("fp32", 6), ("bf16", 12)}
    best = [get_outcome(trial) for trial in made.study.get_trials() if max(trial.intermediate_values) in (6, 12)]
    assert set(best) == {"completed"}


def test_samplers_compare_trials_that_were_stopped_at_the_same_rung(gangs):
    made = gangs(ASHAScheduler((4.0, 12.0), 3, "min", "gpu-seconds"), 2, {"precision": "fp32,bf16"}, epochs=99, lr=0.5)
    for _ in range(2):
        made.train(made.ask())
    shown = made.study._study.get_trials()
    assert [trial.intermediate_values for trial in made.study.get_trials()] != [t.intermediate_values for t in shown]
    assert [max(trial.intermediate_values) for trial in shown] == [1, 1]


def test_a_trial_that_was_cut_off_between_rungs_goes_on_to_the_next_one_also_under_another_driver(gangs):
    made = gangs(ASHAScheduler((30.0, 60.0), 3, "min", "samples"), trials=1, precision="fp32", epochs=9)
    made.train(made.ask(), most=2)
    made.begin("b")
    _, segment = asked = made.ask()
    assert (segment.epoch, segment.budget) == (2, SegmentBudget("samples", 2, 20.0, 30.0))
    made.train(asked)
    assert made.ask()[1].budget == SegmentBudget("samples", 3, 30.0, 60.0)


def test_a_trial_whose_last_report_was_the_last_thing_written_is_completed(gangs):
    made = gangs(ASHAScheduler((30.0,), 3, "min", "samples"), trials=1, precision="fp32", epochs=9)
    made.ask()
    for epoch in (1, 2, 3):
        report = {"metrics": {"val/loss": 0.5}, "checkpoint": None, "time": 0.0, "samples": 10.0, "gpu_seconds": 1.0}
        made.study.report(0, epoch, 0.5, report)
    made.begin("b")
    assert made.ask() is None
    assert get_outcome(made.study.get_trial(0)) == "completed"


def test_without_a_scheduler_a_searched_length_is_that_of_each_trial(gangs):
    made = gangs(ASHAScheduler.without_stopping(9, "min"), trials=12, searched={"epochs": "2..9"}, precision="fp32")
    assert made.space.epochs == 9
    lengths = [made.study.get_trial(n).params["epochs"] for n, _ in enumerate(made.run())]
    assert [max(trial.intermediate_values) for trial in made.study.get_trials()] == lengths
    assert len(set(lengths)) > 1
    assert {get_outcome(trial) for trial in made.study.get_trials()} == {"completed"}


def test_lengths_may_be_searched_where_rungs_are_not_epochs(gangs):
    schedule = ASHAScheduler((30.0, 90.0), 3, "min", "samples")
    made = gangs(schedule, trials=9, searched={"epochs": "1,2,5"}, precision="fp32")
    for epochs, trial in zip(made.run(), made.study.get_trials(), strict=True):
        assert epochs in (min(3, trial.params["epochs"]), min(9, trial.params["epochs"]))
        assert get_outcome(trial) == "completed" or epochs == 3 < trial.params["epochs"]


def test_the_stopping_variant_tells_at_once_who_was_not_among_the_best(gangs):
    made = gangs(ASHAStoppingScheduler.from_config(9, 3, 1, "min"), trials=9, precision="fp32")
    made.run()
    outcomes = {trial.number: get_outcome(trial) for trial in made.study.get_trials()}
    assert set(outcomes.values()) == {"completed", "pruned"}
    for trial in made.study.get_trials():
        last = max(trial.intermediate_values)
        assert (outcomes[trial.number] == "completed") == (last == 9)
        assert last == 9 or trial.user_attrs["reason"] == f"not among the best at epoch {last}"
