import pytest
import torch

from benchmarks.models import task_runs
from benchmarks.models.continual import METHODS, SCENARIOS, JointTask, check_bands
from benchmarks.models.task_runs import compute_deviation, compute_mean
from searchlight.trainables.liquid import LiquidTask
from searchlight.trainables.liquid.config import LiquidConfig


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """Trains in one thread, which is faster for small tensors, of this process."""
    monkeypatch.setattr(task_runs, "in_processes", lambda function, items, processes: list(map(function, items)))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_mean_and_deviation_are_those_between_seeds():
    reports = [{"score": 0.1}, {"score": 0.5}, {"score": 0.9}]
    assert compute_mean(reports, "score") == pytest.approx(0.5)
    assert compute_deviation(reports, "score") == pytest.approx(0.4)
    assert compute_deviation(reports[:1], "score") == 0


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_joint_learning_has_as_many_samples_of_all_tasks(scenario):
    config = LiquidConfig.model_validate({"continual": {"scenario": scenario}, "replay": {"fraction": 0.0}})
    joint, stream = JointTask(config), LiquidTask(config)
    for task in (joint, stream):
        task.build()
        task.context.generator.manual_seed(0)
    batches, others = list(joint.train_batches(0)), list(stream.train_batches(0))
    assert [len(batch.tasks) for batch in batches] == [len(batch.tasks) for batch in others]
    tasks = torch.cat([batch.tasks for batch in batches])
    targets = torch.cat([batch.samples.targets for batch in batches])
    assert set(tasks.tolist()) == {0, 1, 2, 3, 4}
    assert joint.stream.allowed[tasks, targets].all()
    if scenario != "domain":
        assert torch.equal(targets // 2, tasks)


def test_unmet_band_is_named():
    good = {"naive": 0.2, "EWC": 0.2, "SI": 0.2, "replay": 0.9, "DER++": 0.9, "joint": 0.97}
    table = {name: {scenario: [{"val/score": good[name]}] for scenario in SCENARIOS} for name in [*METHODS, "joint"]}
    assert all(check_bands(table).values())
    table["replay"]["class"] = [{"val/score": 0.84}]
    table["SI"]["task"] = [{"val/score": 0.19}]
    unmet = [band for band, is_met in check_bands(table).items() if not is_met]
    assert unmet == ["class-incremental replay at least 85", "task-incremental SI at least naive"]
