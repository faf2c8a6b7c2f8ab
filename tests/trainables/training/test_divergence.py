"""A loss that is far above its start and stays there ends its trial; any other loss does not."""

import itertools
import math
import operator
import random
from dataclasses import asdict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainables.toy_models import Adversaries, Regression, RegressionConfig, every_precision, timeless
from trainables import checkpoint
from trainables.context import Context
from trainables.precision import Diverged
from trainables.task import TaskConfig
from trainables.training.divergence import AT_MOST, FIRST, IN_A_ROW, LossDivergenceDetector
from trainables.training.trainer import TrialTrainer

RISE = 1000.0
FAR = 1e300


def alarm(losses: Any, blowup: LossDivergenceDetector | None = None) -> int | None:
    """How many of `losses` there were when it was given."""
    blowup = blowup or LossDivergenceDetector()
    return next((count for count, loss in enumerate(losses, start=1) if blowup.add(loss, RISE)), None)


def begun(*losses: float) -> LossDivergenceDetector:
    blowup = LossDivergenceDetector()
    assert alarm(losses, blowup) is None
    return blowup


# The rule


@given(st.lists(st.floats(-RISE, RISE), max_size=60))
def test_losses_around_zero_may_do_what_they_like_within_the_limit(losses):
    assert alarm(losses) is None


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, max_value=2.0), max_size=60))
def test_a_loss_may_fall_without_bound(losses):
    assert alarm([2.0] * FIRST + losses) is None


@given(
    st.lists(st.tuples(st.integers(0, IN_A_ROW - 1), st.integers(1, 3)), max_size=20),
    st.floats(RISE * 1.01, FAR),
)
def test_spikes_are_no_blow_up_however_high_and_many(runs, spike):
    losses = [loss for above, below in runs for loss in [spike] * above + [0.5] * below]
    assert alarm([1.0] * FIRST + losses) is None


@given(st.floats(1e-6, 1e6), st.sampled_from([-1, 1]), st.floats(1.01, 1e3))
def test_what_stays_above_the_limit_is_seen_after_a_few_windows(size, sign, factor):
    blowup = begun(*[sign * size] * FIRST)
    assert alarm([max(size, 1.0) * RISE * factor] * 100, blowup) == IN_A_ROW


@given(st.floats(1e-3, 1e3), st.floats(1.01, 1e10))
def test_a_loss_that_jumps_at_the_very_first_update_is_seen(start, factor):
    """As under Adam, whose steps do not grow: the loss is as high at the second window as it ever gets."""
    high = max(start, 1.0) * AT_MOST * RISE * factor
    assert alarm([start] + [high] * 20) == FIRST + IN_A_ROW


@given(st.floats(1e-3, 1e3), st.floats(1.3, 50.0))
def test_a_loss_that_grows_by_the_same_factor_is_seen_before_fp32_overflows(start, growth):
    """As under a learning rate beyond the stable one; the first losses are on their way up already."""
    losses = itertools.accumulate(itertools.repeat(growth), operator.mul, initial=start)
    assert alarm(itertools.takewhile(lambda loss: loss < 3e38, losses)) is not None


@pytest.mark.parametrize("spread", [1e-6, 1.0, 1e6])
def test_noise_of_any_size_around_zero_is_no_blow_up(spread):
    """The loss of a policy gradient."""
    draw = random.Random(0)
    for _ in range(50):
        assert alarm(draw.gauss(0, spread) for _ in range(1000)) is None


def test_a_loss_that_is_zero_at_first_is_judged_by_those_that_are_not():
    assert alarm([0.0] * 100 + [50_000.0] * 100) is None  # rewards are sparse


@pytest.mark.parametrize(("gets_better", "seen"), [(True, False), (False, True)])
def test_a_loss_may_rise_without_end_while_the_objective_gets_better(gets_better, seen):
    blowup = begun(*[1.0] * FIRST)
    alarms = []
    for epoch in range(30):
        alarms.append(alarm([3.0**epoch] * 10, blowup))
        blowup.add_evaluation(-epoch if gets_better else 0.0)
    assert any(alarms) == seen


def test_the_first_evaluation_alone_shows_no_progress():
    blowup = begun(*[1.0] * FIRST, *[900.0] * 10)
    blowup.add_evaluation(0.5)
    assert alarm([1100.0] * 10, blowup) == IN_A_ROW


@given(st.lists(st.floats(-1e5, 1e5), min_size=1, max_size=60), st.integers(0, 59))
def test_its_state_can_be_taken_up_at_any_window(losses, cut):
    straight, blowup = LossDivergenceDetector(), LossDivergenceDetector()
    expected = [straight.add(loss, RISE) for loss in losses]
    got = []
    for window, loss in enumerate(losses):
        if window == cut:
            blowup = LossDivergenceDetector(**asdict(blowup))
        got.append(blowup.add(loss, RISE))
    assert got == expected
    assert blowup == straight


# In a trial


class Steep(Regression):
    """Plain SGD on a quadratic: beyond a rate of about 1 the loss grows at every step."""

    def build(self) -> None:
        super().build()
        self.modules = {"model": torch.nn.Linear(3, 1)}
        self.optimizers = {"sgd": torch.optim.SGD(self.modules["model"].parameters(), lr=self.config.lr)}
        self.schedulers = []


STEEP: dict[str, Any] = {"lr": 3.0, "max_grad_norm": None, "size": 160, "epochs": 5}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_trial_whose_loss_blows_up_ends_within_its_epoch_and_says_from_where(precision):
    training = TrialTrainer(Steep(RegressionConfig(**STEEP, precision=precision)))
    with pytest.raises(
        Diverged, match=r"^train/loss rose to \d\.\d+e\+\d\d from \d\.\d+ by epoch 1, window \d\d$"
    ) as end:
        training.run_epoch()
    assert (end.value.kind, end.value.agreed) == ("loss", True)
    assert training.windows < 39


def test_in_fp16_it_ends_too():
    with pytest.raises(Diverged) as end:
        TrialTrainer(Steep(RegressionConfig(**STEEP, precision="fp16"))).run_epoch()
    assert end.value.kind in ("loss", "loss_scale")


@every_precision
def test_a_stable_rate_is_left_alone(precision):
    training = TrialTrainer(Steep(RegressionConfig(**{**STEEP, "lr": 0.1}, precision=precision)))
    assert max(training.run_epoch()["train/loss"] for _ in range(5)) < 1.0


def test_the_rule_can_be_switched_off():
    config = RegressionConfig(**{**STEEP, "size": 80}, max_loss_rise=None)
    assert TrialTrainer(Steep(config)).run_epoch()["train/loss"] > 1e6
    with pytest.raises(Diverged):
        TrialTrainer(Steep(config.model_copy(update={"max_loss_rise": 1000.0}))).run_epoch()


def test_a_trial_that_goes_on_from_the_middle_of_an_epoch_ends_at_the_same_window(tmp_path):
    def end_of(training: TrialTrainer) -> str:
        with pytest.raises(Diverged) as end:
            training.run_epoch()
        return str(end.value)

    config = RegressionConfig(**STEEP)
    expected = end_of(TrialTrainer(Steep(config)))
    last = int(expected.split()[-1])
    for window in (1, last - 2):  # among the first losses, and between two that are above the limit
        first, second = TrialTrainer(Steep(config)), TrialTrainer(Steep(config))
        assert first.run_epoch(lambda trained=first, window=window: trained.windows >= window) is None
        first.save(tmp_path / "midway.pt")
        second.load(tmp_path / "midway.pt")
        assert end_of(second) == expected


def test_each_update_has_a_start_of_its_own(tmp_path):
    training = TrialTrainer(Adversaries(TaskConfig()))
    training.run_epoch()
    training.save(tmp_path / "state.pt")
    saved = checkpoint.load(tmp_path / "state.pt")["blowups"]
    assert set(saved) == {"generator", "discriminator"}
    assert saved["generator"]["first"] != saved["discriminator"]["first"]


class Rising(Regression):
    """Its loss grows by ten with each epoch, and its objective gets better."""

    objective, mode = "val/score", "max"

    def train_batches(self, epoch: int) -> Any:
        self.factor = 10.0**epoch
        return super().train_batches(epoch)

    def loss(self, batch: Any) -> Any:
        loss, weight = super().loss(batch)
        return loss * self.factor, weight

    def evaluate(self) -> dict[str, Any]:
        return {"val/score": self.factor}


def test_a_curriculum_that_makes_the_loss_a_million_times_larger_is_no_divergence():
    training = TrialTrainer(Rising(RegressionConfig(epochs=8)))
    losses = [timeless(training.run_epoch())["train/loss"] for _ in range(8)]
    assert losses[-1] > 1e4 * max(1.0, losses[0])


# Weights


@every_precision
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_end_a_trial_at_its_first_skipped_window(precision, value):
    class Broken(Regression):
        def after_update(self, report: Any) -> None:
            if self.updaters["train"].steps == 2:
                self.modules["model"][4].weight.data[0, 3] = value

    training = TrialTrainer(Broken(RegressionConfig(precision=precision, loss_scale=1.0)))
    with pytest.raises(Diverged, match=r"^model\.4\.weight is not finite: at step 2 the loss is (nan|inf)") as end:
        training.run_epoch()
    assert (end.value.kind, end.value.agreed) == ("weights", True)
    assert training.task.updaters["train"].skipped == 1


# All ranks


def end_on(rank: int) -> tuple[str, str, bool]:
    training = TrialTrainer(Steep(RegressionConfig(**STEEP), Context(rank=rank, world_size=2)))
    try:
        while True:
            training.run_epoch()
    except Diverged as error:
        return str(error), error.kind, error.agreed


def test_all_ranks_end_at_the_same_window(pair):
    first, second = pair.run(end_on)
    assert first == second
    assert first[0].startswith("train/loss rose to")
