"""Two ranks over gloo train as one process would, whatever data each of them holds."""

import copy
import math
import multiprocessing
import multiprocessing.connection
import pickle
import random
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.trainables.toys import (
    PRECISIONS,
    TOLERANCE,
    Regression,
    RegressionConfig,
    classifier,
    distance,
    full_batch,
    identical,
    norm,
    recorded_gradients,
    samples,
    timeless,
    token_loss,
    tokens,
)
from trainables.context import Context
from trainables.ema import Ema
from trainables.loop import Training
from trainables.precision import Diverged, LossScale
from trainables.update import Updater

RANKS = 2
LIMIT = 60.0  # seconds for one call on both ranks

every_precision = pytest.mark.parametrize("precision", PRECISIONS)


def _serve(rank: int, store: str, pipe: Any) -> None:
    """Run what comes through `pipe` and send back what it returns, or its traceback."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=LIMIT / 2)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=RANKS, timeout=limit)
    while True:
        function, arguments = pipe.recv()
        try:
            answer = (True, function(rank, *arguments))
        except BaseException:  # whatever it is, the other side is told and shows it
            answer = (False, traceback.format_exc())
        pipe.send_bytes(pickle.dumps(answer))


class Pair:
    """Two processes in one process group, started once; those that fail or hang are replaced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[Any] = []
        self.pipes: list[Any] = []
        self.starts = 0

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `function(rank, *arguments)` returns on each rank."""
        if not self.processes:
            self.start()
        for pipe in self.pipes:
            pipe.send((function, arguments))
        try:
            return self.answers(time.monotonic() + LIMIT)
        except BaseException:  # the processes may be stuck: the next test gets new ones
            self.end()
            raise

    def answers(self, deadline: float) -> list[Any]:
        answers: dict[int, Any] = {}
        while len(answers) < RANKS:
            waiting = [rank for rank in range(RANKS) if rank not in answers]
            pipes = [self.pipes[rank] for rank in waiting]
            ready = multiprocessing.connection.wait(pipes, max(0.0, deadline - time.monotonic()))
            if not ready:
                pytest.fail(f"no answer from ranks {waiting} within {LIMIT:g} s")
            for rank in waiting:
                if self.pipes[rank] not in ready:
                    continue
                try:
                    worked, answers[rank] = pickle.loads(self.pipes[rank].recv_bytes())
                except EOFError:
                    pytest.fail(f"rank {rank} ended with exit code {self.processes[rank].exitcode}")
                if not worked:
                    pytest.fail(f"rank {rank} raised:\n{answers[rank]}")
        return [answers[rank] for rank in range(RANKS)]

    def start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.starts += 1
        for rank in range(RANKS):
            ours, theirs = spawn.Pipe()
            store = str(self.folder / f"store-{self.starts}")
            process = spawn.Process(target=_serve, args=(rank, store, theirs), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(10)
        for pipe in self.pipes:
            pipe.close()
        self.processes, self.pipes = [], []


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("pair"))
    yield pair
    pair.end()


# What runs on each rank


def one_window(rank: int, precision: str, sizes: list[list[int]]) -> dict[str, Any]:
    torch.manual_seed(0)
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = recorded_gradients(optimizer)
    report = Updater({"sgd": optimizer}, precision).update(tokens(sizes[rank], seed=rank), token_loss(model))
    weights = [p.detach() for p in model.parameters()]
    return {"gradients": gradients, "weights": weights, "report": asdict(report)}


def unused_parameters(rank: int) -> list[float]:
    """Two windows under weight decay: the first parameter on all ranks, one on rank 1 alone, one on none."""
    everywhere, somewhere, nowhere = (nn.Parameter(torch.ones(1)) for _ in range(3))
    updater = Updater({"sgd": torch.optim.SGD([everywhere, somewhere, nowhere], lr=0.5, weight_decay=0.5)})

    def loss(x: Tensor) -> tuple[Tensor, int]:
        return (everywhere * x).mean() + ((somewhere * x).mean() if rank == 1 else 0.0), 1

    updater.update([samples(1)], loss)
    return [everywhere.item(), somewhere.item(), nowhere.item()]


def optimizer_of_one_rank(rank: int) -> list[float]:
    """A policy that only rank 0 has something to learn for."""
    agent, policy = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    updater = Updater({"agent": torch.optim.SGD([agent], lr=1.0), "policy": torch.optim.SGD([policy], lr=1.0)})
    updater.update([samples(2)], lambda x: ((agent * x).sum() + (0 if rank else (policy * x).sum()), 1))
    return [agent.item(), policy.item()]


def one_rank_overflows(rank: int, precision: str, value: float, sick: int) -> dict[str, Any]:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    ema = Ema({"weight": weight}, 0.9)
    updater = Updater(
        {"adam": optimizer}, precision, schedulers=[schedule], ema=ema, loss_scale=LossScale(64.0), max_grad_norm=1.0
    )

    def loss(x: Tensor) -> tuple[Tensor, int]:
        return (weight * x).sum(), 1

    updater.update([samples(1, 2)], loss)
    before = copy.deepcopy([weight.detach(), updater.state_dict()])
    bad = samples(1, value if rank == sick else 2)
    report = updater.update([samples(1, 2), bad], loss)
    after = copy.deepcopy([weight.detach(), updater.state_dict()])
    updater.update([samples(3, 1)], loss)
    return {"report": asdict(report), "before": before, "after": after, "later": weight.detach()}


def too_many_skips(rank: int) -> str:
    weight = nn.Parameter(torch.ones(1))
    updater = Updater({"sgd": torch.optim.SGD([weight], lr=1.0)}, "fp16", loss_scale=LossScale(2.0, minimum=1.0))
    try:
        for _ in range(5):
            updater.update([samples(math.inf if rank else 1.0)], lambda x: ((weight * x).sum(), 1))
    except Diverged as error:
        return f"{updater.skipped} skipped: {error}"
    return "went on"


class Uneven(Regression):
    """Rank 1 runs out of data while rank 0 has three windows more."""

    def train_batches(self, epoch: int) -> Iterator[Any]:
        batches = list(super().train_batches(epoch))
        yield from batches[:1] if self.context.rank else batches

    def loss(self, batch: Any) -> tuple[Tensor, int]:
        loss, weight = super().loss(batch)
        self.log("size", float(weight), weight)
        if self.context.rank == 0:
            self.log("rank_0", 3.0)
        return loss, weight

    def evaluate(self) -> dict[str, Any]:
        # Rank 1 has no share of the validation data, so that its mean is one over nothing.
        share = (math.nan, 0.0) if self.context.rank else (2.0, 5.0)
        return {**super().evaluate(), "val/draw": 0.0, "val/share": share, "val/rank": (float(self.context.rank), 3.0)}


class Sharded(Regression):
    def evaluate(self) -> dict[str, Any]:
        return {**super().evaluate(), "val/draw": 0.0}


TASKS = {"uneven": Uneven, "sharded": Sharded}


def trial(
    rank: int, task: str, settings: dict[str, Any], epochs: int, load: str = "", save: str = ""
) -> dict[str, Any]:
    training = Training(TASKS[task](RegressionConfig(**settings), Context(rank=rank, world_size=RANKS)))
    if load:
        training.load(Path(load))
    reports = [timeless(training.run_epoch()) for _ in range(epochs)]
    if save:
        training.save(Path(save.format(rank=rank)))
    updater = training.task.updaters["train"]
    counted = (updater.steps, updater.skipped, updater.empty)
    return {"reports": reports, "state": dict(training.task.modules["model"].state_dict()), "counted": counted}


def stopped_on_one_rank(rank: int) -> tuple[Any, int]:
    training = Training(Sharded(RegressionConfig(), Context(rank=rank, world_size=RANKS)))
    updater = training.task.updaters["train"]
    return training.run_epoch(lambda: rank == 1 and updater.steps == 2), updater.steps


def same_shards(rank: int) -> list[int]:
    training = Training(Sharded(RegressionConfig(size=23), Context(rank=rank, world_size=RANKS)))
    training.run_epoch()
    return [int(i) for batch in training.task.context.shard(torch.arange(23), 4) for i in batch]


def random_numbers(rank: int) -> dict[str, list[float]]:
    training = Training(Sharded(RegressionConfig(), Context(rank=rank, world_size=RANKS)))
    training.run_epoch()
    return {
        "torch": torch.rand(2).tolist(),
        "numpy": np.random.rand(2).tolist(),
        "python": [random.random()],
        "shared": torch.rand(2, generator=training.task.context.generator).tolist(),
    }


def fails_on_rank_1(rank: int) -> None:
    if rank == 1:
        raise ValueError("the second rank is unwell")
    dist.barrier()


# Exact over ranks


@every_precision
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([[4, 4], [4, 4]], id="even-B17"),
        pytest.param([[3, 9, 2], [5]], id="ragged-B18"),
        pytest.param([[2, 3], [12, 40]], id="few-and-many-tokens-B18"),
        pytest.param([[4, 3], []], id="nothing-on-rank-1-B19"),
        pytest.param([[], [4, 3]], id="nothing-on-rank-0-B19"),
        pytest.param([[0, 0], [5]], id="no-weight-on-rank-0-B19"),
    ],
)
def test_the_gradient_is_that_of_all_ranks_data_at_once(pair, precision, sizes):  # also C58, C60
    first, second = pair.run(one_window, precision, sizes)
    torch.manual_seed(0)
    batches = [batch for rank in range(RANKS) for batch in tokens(sizes[rank], seed=rank)]
    loss, expected = full_batch(classifier(), batches)
    assert distance(first["gradients"][0], expected) <= TOLERANCE[precision] * norm(expected)
    assert identical(first["weights"], second["weights"])
    for rank, report in enumerate((first["report"], second["report"])):
        assert report["outcome"] == "applied"
        assert report["micro_batches"] == len(sizes[rank])
        assert report["loss"] == pytest.approx(loss, rel=TOLERANCE[precision])  # A16, C61
        assert report["grad_norm"] == pytest.approx(norm(expected), rel=TOLERANCE[precision])  # D44
        assert report["weight"] == sum((labels >= 0).sum().item() for _, labels in batches)
    assert first["report"]["grad_norm"] == second["report"]["grad_norm"]


@every_precision
def test_a_window_without_weight_on_any_rank_is_empty_on_all(pair, precision):  # A6
    for result in pair.run(one_window, precision, [[0], []]):
        assert (result["report"]["outcome"], result["report"]["reason"]) == ("empty", "no weight")
        assert result["gradients"] == []


def test_a_parameter_that_one_rank_uses_steps_on_all_and_one_that_none_uses_on_none(pair):  # B23, E58
    for weights in pair.run(unused_parameters):
        # gradients 1, 1/2 and none; plus the decay of 1/2
        assert weights == [1 - 0.5 * 1.5, 1 - 0.5 * 1.0, 1.0]


def test_an_optimizer_with_gradients_on_one_rank_steps_on_all(pair):  # B23, B26, E51
    assert pair.run(optimizer_of_one_rank) == [[-2.0, -1.0]] * 2


# Not finite on one rank


@every_precision
@pytest.mark.parametrize(("value", "sick"), [(math.nan, 0), (math.inf, 1)], ids=["nan-rank-0", "inf-rank-1"])
def test_a_bad_gradient_on_one_rank_skips_the_window_on_all(pair, precision, value, sick):  # B25, C56, C57
    results = pair.run(one_rank_overflows, precision, value, sick)
    for result in results:
        assert (result["report"]["outcome"], result["report"]["reason"]) == ("skipped", "non-finite gradient")
        before, after = result["before"], result["after"]
        before[1].update(skipped=1, consecutive_skips=1)
        if precision == "fp16":
            assert (before[1]["loss_scale"]["scale"], after[1]["loss_scale"]["scale"]) == (64.0, 32.0)
            before[1]["loss_scale"] = after[1]["loss_scale"]
        assert identical(before, after)
        assert not identical(result["later"], after[0])
    assert identical(results[0]["later"], results[1]["later"])


def test_all_ranks_diverge_together(pair):  # C37
    first, second = pair.run(too_many_skips)
    assert first.startswith("2 skipped: loss scale 1 cannot be lowered")
    assert first == second


# Whole trials


@every_precision
def test_a_rank_without_data_goes_on_with_the_others(pair, precision):  # B20
    settings = {"precision": precision, "size": 32, "epochs": 2, "ema_decay": 0.9, "loss_scale": 1024.0}
    first, second = pair.run(trial, "uneven", settings, 2)
    assert first["counted"] == second["counted"] == (8, 0, 0)
    assert identical(first["state"], second["state"])
    assert identical(first["reports"], second["reports"])


def test_reports_are_means_over_the_samples_of_all_ranks(pair):  # C61
    first, second = pair.run(trial, "uneven", {"size": 26, "batch_size": 8}, 1)
    assert identical(first["reports"], second["reports"])  # buffers of batch norm included
    report = first["reports"][0]
    assert report["val/seen"] == 13 + 8
    assert report["train/size"] == pytest.approx((2 * 8 * 8 + 5 * 5) / 21)
    assert report["train/rank_0"] == 3.0
    assert report["val/share"] == 2.0  # a mean over nothing does not spread
    assert report["val/rank"] == 0.5


def test_each_sample_is_trained_once_per_epoch_over_all_ranks(pair):  # B29
    for result in pair.run(trial, "sharded", {"size": 23, "accumulation": 2}, 2):
        assert [report["val/seen"] for report in result["reports"]] == [23.0, 46.0]
    first, second = pair.run(same_shards)
    assert sorted(first + second) == list(range(23))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_ranks_go_on_from_the_checkpoint_that_rank_0_wrote(pair, tmp_path, precision):  # H76, C61
    # Each rank draws its own dropout masks, and feeds its own batch norm.
    settings = {"precision": precision, "dropout": 0.3, "accumulation": 2, "ema_decay": 0.9}
    pair.run(trial, "sharded", settings, 1, "", str(tmp_path / "rank-{rank}.pt"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rank-0.pt", "rank-0.pt.sha256"]
    straight = pair.run(trial, "sharded", settings, 2)
    resumed = pair.run(trial, "sharded", settings, 1, str(tmp_path / "rank-0.pt"))
    for rank in range(RANKS):
        assert identical(resumed[rank]["reports"], straight[rank]["reports"][1:])
        assert identical(resumed[rank]["state"], straight[rank]["state"])


def test_a_stop_that_one_rank_hears_stops_all_at_the_same_window(pair):
    assert pair.run(stopped_on_one_rank) == [(None, 2), (None, 2)]


def test_ranks_draw_different_numbers_and_share_one_generator(pair):
    first, second = pair.run(random_numbers)
    assert [name for name in first if first[name] == second[name]] == ["shared"]


# The helper itself


def test_an_error_on_a_rank_is_shown_with_its_traceback(pair):
    with pytest.raises(pytest.fail.Exception, match=r"(?s)rank 1 raised:.*in fails_on_rank_1.*second rank is unwell"):
        pair.run(fails_on_rank_1)
