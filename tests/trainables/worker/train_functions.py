"""Train as functions of users do. None of them knows of a search."""

import sys
import tempfile
import threading
from pathlib import Path

import ray.train
import ray.tune
import torch
from ray.tune import report as report_to_tune

from tests.trainables.training.trials import FakeClock

SCRATCH = [""]  # where `save` works; a test sets it
SEEN = []  # what functions tell their test
CLOCK = FakeClock()
GO, DONE = threading.Event(), threading.Event()  # when a thread that was left behind reports, and that it has


def save(**content):
    """A checkpoint with the text of each file."""
    folder = Path(tempfile.mkdtemp(dir=SCRATCH[0]))
    for name, text in content.items():
        (folder / name).write_text(str(text))
    return ray.train.Checkpoint.from_directory(folder)


def load_epoch(checkpoint):
    """The epoch of the checkpoint that the trial resumes from, or 0."""
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        return int((Path(folder) / "epoch").read_text())


def resumes(config):
    """Goes on from its checkpoint and saves one with every report, or with each so many only."""
    start = load_epoch(ray.train.get_checkpoint())
    SEEN.append((config["trial"], start, len(ray.train.get_all_reported_checkpoints())))
    for epoch in range(start + 1, config.get("epochs", 100) + 1):
        CLOCK.sleep(config.get("nap", 0.0))
        checkpoint = None if epoch % config.get("every", 1) else save(epoch=epoch)
        ray.train.report({"loss": config["trial"] + 1 / epoch}, checkpoint=checkpoint)


def forgets(config):
    """Without checkpoints, and it catches all exceptions."""
    epoch = 0
    while True:
        epoch += 1
        try:
            ray.train.report({"loss": 1 / epoch})
        except Exception:  # as users' code does: what ends a trial must get past it
            SEEN.append("caught")


def needs_a_new_process(config):
    """Fails where a library was set up before, as Accelerate does; or always."""
    if hasattr(ray.train, "set_up_by_a_test") or config.get("always"):
        raise RuntimeError(f"restart your runtime in trial {config['trial']}")
    ray.train.set_up_by_a_test = True
    ray.train.report({"loss": 1.0})


def fails_later(config):
    """Fails after its first report."""
    ray.train.report({"loss": 1.0})
    raise RuntimeError("late")


def fails_while_another_rank_writes(config):
    Path(config["part"]).mkdir(parents=True)
    raise RuntimeError("alone")


def closes(config):
    """Reports for ever, and closes what it has open."""
    try:
        while True:
            ray.train.report({"loss": 1.0}, checkpoint=save(epoch=1) if config.get("saves") else None)
    finally:
        SEEN.append(f"closed {config['trial']}")


def tests_at_the_end(config):
    """Trains two epochs, tests the model and exits."""
    for epoch in range(2):
        ray.train.report({"loss": 1 / (epoch + 1)})
    SEEN.append("tested")
    sys.exit(config["code"])


def waits(config):
    """Reports, and then waits for the test."""
    while True:
        ray.train.report({"loss": 1.0})
        GO.wait()


def draws(config):
    for _ in range(3):
        ray.train.report({"loss": torch.rand(()).item()})


def splits_at_random(config):
    """Report the sum of what it validates on, which must be the same when it goes on."""
    _, validated = torch.utils.data.random_split(range(100), [80, 20])
    for epoch in range(load_epoch(ray.train.get_checkpoint()) + 1, 9):
        ray.train.report({"loss": float(sum(validated))}, save(epoch=epoch))


def reports_all_kinds(config):
    metrics = {"loss": torch.tensor([0.5]), "count": 3, "flag": True, "val": {"acc": 0.25}, "name": "x", "none": None}
    ray.train.report(metrics)
    ray.train.report(metrics)


def is_made_for_tune(config):
    """Know Ray Tune only, also by names that are imported."""
    start = load_epoch(ray.tune.get_checkpoint())
    SEEN.append((start, ray.tune.get_context().get_trial_dir()))
    for epoch in range(start + 1, 9):
        with save(epoch=epoch).as_directory() as folder:
            report_to_tune({"loss": 1 / epoch}, checkpoint=ray.tune.Checkpoint.from_directory(folder))


def yields(config):
    """As Ray Tune takes it."""
    try:
        yield None
        for epoch in range(config["epochs"]):
            yield {"loss": 1 / (epoch + 1)}
    finally:
        SEEN.append("ended")


def yields_another_metric(config):
    yield {"acc": 1.0}


def lacks_a_value(config):
    return {"loss": config["rate"] + config["depth"]}


def lacks_a_value_of_its_own(config):
    return {"loss": {"adam": 1.0}[config["optimizer"]]}


def silent():
    """Takes no config, and reports nothing."""


def returns(config):
    """Report nothing, and return what the config says: on another rank something else."""
    return config["result"] if ray.train.get_context().get_world_rank() == 0 else None


def returns_after_a_report(config):
    ray.train.report({"loss": 0.5}, save(epoch=1))
    return {"loss": 9.0}


def diverges(config):
    """Does not look at what it reports, and would go on for ever."""
    ray.train.report({"loss": 1.0, "other": float("nan")}, checkpoint=save(epoch=1))
    ray.train.report({"loss": float(config["value"]), "other": 3.0}, checkpoint=save(epoch=2))
    while True:
        try:
            ray.train.report({"loss": 0.5, "other": 4.0})
        except Exception:  # as users' code does
            SEEN.append("caught")


def raises(config):
    ray.train.report({"loss": 1.0})
    raise KeyError("no such puzzle")


def exits(config):
    sys.exit("enough")


def breaks_on_its_way_out(config):
    try:
        ray.train.report({"loss": 1.0})
    finally:
        raise OSError("the log cannot be closed")


def catches_everything(config):
    for _ in range(3):
        try:
            ray.train.report({"loss": 1.0})
        except BaseException:  # even this must not keep a trial from ending
            SEEN.append("caught")


def uploads_itself(config):
    ray.train.report({"loss": 1.0}, checkpoint=save(epoch=1), checkpoint_upload_fn=lambda *_: None)


def saves_what_is_not_there(config):
    ray.train.report({"loss": 1.0}, checkpoint=ray.train.Checkpoint.from_directory("/nowhere"))


def leaves_a_thread(config):
    """Its thread reports later, while another trial runs."""

    def late():
        GO.wait(30)
        try:
            ray.train.report({"loss": -1.0})
        except RuntimeError as error:
            SEEN.append(str(error))
        DONE.set()

    threading.Thread(target=late, daemon=True).start()
    ray.train.report({"loss": 1.0})


def lets_a_thread_report(config):
    GO.set()
    DONE.wait(30)
    ray.train.report({"loss": 3.0})


def takes_a_data_set(config):
    ray.train.get_dataset_shard("train")


def changes_its_mode(config):
    SEEN.append(torch.is_grad_enabled())
    torch.autograd.set_grad_enabled(False)
    SEEN.append(torch.is_grad_enabled())
    ray.train.report({"loss": 1.0})


def each_saves_a_part(config):
    rank = torch.distributed.get_rank()
    ray.train.report({"loss": float(rank)}, checkpoint=save(**{f"rank-{rank}": rank}))
    with ray.train.get_checkpoint().as_directory() as folder:
        ray.train.report({"loss": len([*Path(folder).iterdir()])})


def all_save_the_same_name(config):
    ray.train.report({"loss": 0.0}, checkpoint=save(state=torch.distributed.get_rank()))


def one_returns_early(config):
    if torch.distributed.get_rank() == 0:
        ray.train.report({"loss": 1.0})


def trains_together(config):
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(rank))
    for _ in range(100):
        loss = (model(x) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weights = [float(weight) for weight in model.module.weight.flatten()]
        ray.train.report({"loss": loss, "w0": weights[0], "w1": weights[1], "rank": rank})


def weighs(config):
    """Two numbers a report; the second is what the config says."""
    ray.train.report({"loss": 0.5, "seconds": config["seconds"]})
