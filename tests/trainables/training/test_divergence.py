"""End a trial whose loss stays far above its start, and no other."""

import itertools
import math
import operator
import random
import re
from dataclasses import asdict
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.trainables import checkpoint
from searchlight.trainables.precision import Diverged
from searchlight.trainables.training.divergence import AT_MOST, FIRST, IN_A_ROW, LossDivergenceDetector
from searchlight.trainables.training.trainer import TrialTrainer
from tests.trainables.toy_models import Adversaries, Regression
from tests.trainables.training.trials import make_trial, run_epochs

RISE = 1000.0
FAR = 1e300
examples = settings(max_examples=50)


def alarm(losses: Any, detector: LossDivergenceDetector | None = None) -> int | None:
    """How many of `losses` there were when it was given."""
    detector = detector or LossDivergenceDetector()
    return next((count for count, loss in enumerate(losses, start=1) if detector.add(loss, RISE)), None)


def start_with(*losses: float) -> LossDivergenceDetector:
    detector = LossDivergenceDetector()
    assert alarm(losses, detector) is None
    return detector


@examples
@given(st.lists(st.floats(-FAR, RISE), max_size=60))
def test_losses_within_the_limit_are_no_divergence(losses):
    assert alarm(losses) is None


@examples
@given(st.lists(st.tuples(st.integers(0, IN_A_ROW - 1), st.integers(1, 3)), max_size=20), st.floats(RISE * 1.01, FAR))
def test_short_spikes_are_no_divergence(runs, spike):
    losses = [loss for above, below in runs for loss in [spike] * above + [0.5] * below]
    assert alarm([1.0] * FIRST + losses) is None


@examples
@given(st.floats(1e-6, 1e6), st.sampled_from([-1, 1]), st.floats(1.01, 1e3))
def test_loss_that_stays_above_the_limit_is_found(size, sign, factor):
    detector = start_with(*[sign * size] * FIRST)
    assert alarm([max(size, 1.0) * RISE * factor] * 100, detector) == IN_A_ROW


@examples
@given(st.floats(1e-3, 1e3), st.floats(1.01, 1e10))
def test_jump_at_the_first_update_is_found(start, factor):
    """As under Adam, whose steps do not grow: the loss is as high at the second window as it ever gets."""
    high = max(start, 1.0) * AT_MOST * RISE * factor
    assert alarm([start] + [high] * 20) == FIRST + IN_A_ROW


@examples
@given(st.floats(1e-3, 1e3), st.floats(1.3, 50.0))
def test_exponential_growth_is_found_before_fp32_overflows(start, growth):
    """As under a learning rate beyond the stable one; the first losses are on their way up already."""
    losses = itertools.accumulate(itertools.repeat(growth), operator.mul, initial=start)
    assert alarm(itertools.takewhile(lambda loss: loss < 3e38, losses)) is not None


@pytest.mark.parametrize("spread", [1e-6, 1.0, 1e6])
def test_noise_around_zero_is_no_divergence(spread):
    """The loss of a policy gradient."""
    draw = random.Random(0)
    for _ in range(50):
        assert alarm(draw.gauss(0, spread) for _ in range(1000)) is None


def test_losses_of_zero_do_not_set_the_limit():
    assert alarm([0.0] * 100 + [50_000.0] * 100) is None  # rewards are sparse


@pytest.mark.parametrize(("gets_better", "seen"), [(True, False), (False, True)])
def test_limit_follows_the_loss_while_the_objective_improves(gets_better, seen):
    detector = start_with(*[1.0] * FIRST)
    alarms = []
    for epoch in range(30):
        alarms.append(alarm([3.0**epoch] * 10, detector))
        detector.add_evaluation(-epoch if gets_better else 0.0)
    assert any(alarms) == seen


def test_first_evaluation_alone_shows_no_progress():
    detector = start_with(*[1.0] * FIRST, *[900.0] * 10)
    detector.add_evaluation(0.5)
    assert alarm([1100.0] * 10, detector) == IN_A_ROW


@examples
@given(st.lists(st.floats(-1e5, 1e5), min_size=1, max_size=60), st.integers(0, 59))
def test_detector_state_restores_at_any_window(losses, cut):
    straight, detector = LossDivergenceDetector(), LossDivergenceDetector()
    expected = [straight.add(loss, RISE) for loss in losses]
    got = []
    for window, loss in enumerate(losses):
        if window == cut:
            detector = LossDivergenceDetector(**asdict(detector))
        got.append(detector.add(loss, RISE))
    assert got == expected
    assert detector == straight


class Steep(Regression):  # plain SGD on a quadratic: beyond a rate of about 1 the loss grows at every step
    def build(self) -> None:
        super().build()
        self.modules = {"model": torch.nn.Linear(3, 1)}
        self.optimizers = {"sgd": torch.optim.SGD(self.modules["model"].parameters(), lr=self.config.lr)}
        self.schedulers = []


STEEP: dict[str, Any] = {"lr": 3.0, "max_grad_norm": None, "size": 160, "epochs": 5}


def run_until_diverged(training: TrialTrainer) -> Diverged:
    with pytest.raises(Diverged) as end:
        training.run_epoch()
    return end.value


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_loss_that_blows_up_ends_its_trial_within_the_epoch(precision):
    training = make_trial(Steep, **STEEP, precision=precision)
    end = run_until_diverged(training)
    assert end.kind in ("loss", "loss_scale" if precision == "fp16" else "loss")
    if precision != "fp16":
        assert end.agreed
        assert training.windows < 39
        assert re.match(r"train/loss rose to \d\.\d+e\+\d\d from \d\.\d+ by epoch 1, window \d\d$", str(end))


def test_max_loss_rise_of_none_switches_the_rule_off():
    assert make_trial(Steep, **{**STEEP, "size": 80}, max_loss_rise=None).run_epoch()["train/loss"] > 1e6
    run_until_diverged(make_trial(Steep, **{**STEEP, "size": 80}, max_loss_rise=1000.0))


def test_each_update_has_a_start_of_its_own(tmp_path):
    training = make_trial(Adversaries)
    training.run_epoch()
    training.save(tmp_path / "state.pt")
    saved = checkpoint.load(tmp_path / "state.pt")["blowups"]
    assert set(saved) == {"generator", "discriminator"}
    assert saved["generator"]["first"] != saved["discriminator"]["first"]


def test_rising_loss_with_a_better_objective_is_no_divergence():
    class Rising(Regression):  # its loss grows by ten with each epoch, and so does its objective
        objective, mode = "val/score", "max"

        def train_batches(self, epoch: int) -> Any:
            self.factor = 10.0**epoch
            return super().train_batches(epoch)

        def loss(self, batch: Any) -> Any:
            loss, weight = super().loss(batch)
            return loss * self.factor, weight

        def evaluate(self) -> dict[str, Any]:
            return {"val/score": self.factor}

    losses = [report["train/loss"] for report in run_epochs(make_trial(Rising, epochs=8), 8)]
    assert losses[-1] > 1e4 * max(1.0, losses[0])


@pytest.mark.parametrize(("precision", "value"), [("fp32", math.nan), ("bf16", math.inf), ("fp16", math.nan)])
def test_non_finite_weight_ends_a_trial_at_its_first_skip(precision, value):
    class Broken(Regression):
        def after_update(self, report: Any) -> None:
            if self.updaters["train"].steps == 2:
                self.modules["model"][4].weight.data[0, 3] = value

    training = make_trial(Broken, precision=precision, loss_scale=1.0)
    end = run_until_diverged(training)
    assert re.match(r"model\.4\.weight is not finite: at step 2 the loss is (nan|inf)", str(end))
    assert (end.kind, end.agreed) == ("weights", True)
    assert training.task.updaters["train"].skipped == 1


def diverge_on_rank(rank: int) -> tuple[str, str, bool]:
    end = run_until_diverged(make_trial(Steep, rank, 2, **STEEP))
    return str(end), end.kind, end.agreed


def test_all_ranks_diverge_at_the_same_window(pair):
    first, second = pair.run(diverge_on_rank)
    assert first == second
    assert first[0].startswith("train/loss rose to")


class Spoiled(Regression):
    """Its loss is NaN in so many of the six windows of each epoch, or its gradient overflows in fp16."""

    spoiled, overflows = 0, False

    def train_batches(self, epoch: int) -> Any:
        for self.window, batch in enumerate(super().train_batches(epoch)):
            yield batch

    def loss(self, batch: Any) -> Any:
        loss, weight = super().loss(batch)
        if self.overflows:
            return loss * 1e35, weight
        return loss * (math.nan if self.window < self.spoiled else 1.0), weight


@pytest.mark.parametrize(("spoiled", "diverges"), [(0, False), (3, False), (4, True), (6, True)])
def test_epoch_of_mostly_skipped_windows_is_a_divergence(monkeypatch, spoiled, diverges):
    monkeypatch.setattr(Spoiled, "spoiled", spoiled)
    training = make_trial(Spoiled)
    if not diverges:
        assert run_epochs(training, 1)[0]["amp/skipped"] == spoiled
        return
    with pytest.raises(Diverged, match=f"^{spoiled} of 6 windows in epoch 1 were not finite and skipped$") as raised:
        training.run_epoch()
    assert (raised.value.kind, raised.value.agreed) == ("skips", True)


def test_trial_without_any_update_does_not_complete(monkeypatch):
    """In fp16 an epoch may pass while the loss scale is lowered, and the whole trial may not."""
    monkeypatch.setattr(Spoiled, "overflows", True)
    training = make_trial(Spoiled, precision="fp16", epochs=2)
    assert training.run_epoch()["train/updates"] == 0
    with pytest.raises(Diverged, match=r"^6 of 6 windows in epoch 2 were not finite and skipped$"):
        training.run_epoch()
