"""What is asked for is what runs, everything that is kept is fp32, and the loss scale obeys its bounds."""

import pytest
import torch
from torch import Tensor, nn

from tests.trainables.toys import PRECISIONS, classifier, recorded_gradients, samples, token_loss, tokens
from trainables.ema import Ema
from trainables.precision import Diverged, LossScale, Precision, autocast, resolve, supported
from trainables.update import Updater

CPU = torch.device("cpu")
every_precision = pytest.mark.parametrize("precision", PRECISIONS)


@every_precision
def test_the_precision_that_was_asked_for_is_what_the_loss_runs_in(precision):  # G68, C46
    model = nn.Linear(3, 2)
    dtypes = []

    def loss(x: Tensor) -> tuple[Tensor, int]:
        outputs = model(x)
        dtypes.append(outputs.dtype)
        return outputs.float().square().mean(), len(x)

    updater = Updater({"sgd": torch.optim.SGD(model.parameters(), lr=0.1)}, precision)
    updater.update([torch.ones(4, 3)] * 2, loss)
    assert dtypes == [Precision(precision).dtype] * 2


def test_a_cpu_supports_all_precisions():  # G68
    assert supported(CPU) == [Precision.FP32, Precision.BF16, Precision.FP16]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_precision_that_the_device_lacks_is_refused_and_not_replaced(precision):  # G68, C46
    with pytest.raises(ValueError, match=f"that meta supports, but got {precision}. Choose from fp32"):
        resolve(precision, torch.device("meta"))
    with pytest.raises(ValueError, match=f"that meta supports, but got {precision}. Choose from fp32"):
        Updater({"sgd": torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)}, precision, device="meta")


@pytest.mark.parametrize("precision", ["float16", "FP16", ""])
def test_a_name_that_is_no_precision_is_refused(precision):
    with pytest.raises(ValueError, match=f"must be one of fp32, bf16, fp16, auto, but got '{precision}'"):
        resolve(precision, CPU)


def test_fp32_has_no_autocast_context():  # G74
    with autocast(Precision.FP32, CPU):
        assert not torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16), autocast(Precision.FP32, CPU):
        assert torch.is_autocast_enabled("cpu")  # one that is there already is not touched either


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_backward_optimizer_and_hooks_run_outside_autocast(precision):  # G69
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inside = {}

    def loss(x: Tensor) -> tuple[Tensor, int]:
        inside["loss"] = torch.is_autocast_enabled("cpu")
        return model(x).float().square().mean(), len(x)

    def note(name: str) -> None:
        inside[name] = torch.is_autocast_enabled("cpu")

    model.weight.register_hook(lambda gradient: note("backward"))
    optimizer.register_step_pre_hook(lambda *args: note("step"))
    updater = Updater({"sgd": optimizer}, precision, on_update=lambda report: note("report"))
    updater.update([torch.ones(4, 3)], loss)
    assert inside == {"loss": True, "backward": False, "step": False, "report": False}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_each_micro_batch_sees_the_weights_as_they_are(precision):  # G69: no stale half-precision copy
    weight = nn.Parameter(torch.ones(1, 1))
    outputs = []

    def loss(x: Tensor) -> tuple[Tensor, int]:
        with torch.no_grad():
            weight.mul_(2)
        outputs.append((x @ weight).item())
        return (x @ weight).float().mean(), 1

    updater = Updater({"sgd": torch.optim.SGD([weight], lr=1.0)}, precision, loss_scale=LossScale(1024))
    updater.update([torch.ones(1, 1)] * 2, loss)
    updater.update([torch.ones(1, 1)], loss)
    assert outputs == [2.0, 4.0, 6.0]  # doubled twice, one step of -1, doubled again


@every_precision
def test_a_loss_in_half_precision_is_weighed_in_fp32(precision):  # G71: 8 * 10,000 is infinite in fp16
    weight = nn.Parameter(torch.full((1,), 8.0))
    updater = Updater({"sgd": torch.optim.SGD([weight], lr=1.0)}, precision, loss_scale=LossScale(2.0**14))
    report = updater.update([samples(1)], lambda x: ((weight * x).sum().to(Precision(precision).dtype), 10_000))
    assert (report.outcome, report.loss, weight.item()) == ("applied", 8.0, 7.0)


@every_precision
def test_everything_that_outlives_a_window_is_fp32(precision):  # G72, C34
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    gradients = recorded_gradients(optimizer)
    ema = Ema(dict(model.named_parameters()), 0.9)
    Updater({"adam": optimizer}, precision, ema=ema).update(tokens([4, 3]), token_loss(model))
    moments = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
    kept = [*model.parameters(), *gradients[0], *moments, *ema.state_dict()["shadow"].values()]
    assert len(kept) == 4 + 4 + 8 + 4
    assert {tensor.dtype for tensor in kept} == {torch.float32}


def test_a_reported_loss_is_summed_in_fp32():  # a running sum in fp16 stops at 2048
    weight = nn.Parameter(torch.ones(1))
    updater = Updater({"sgd": torch.optim.SGD([weight], lr=1e-3)}, "fp16", loss_scale=LossScale(1.0))
    report = updater.update([samples(3)] * 1500, lambda x: ((weight * x).sum().half(), 1))
    assert report.loss == 3.0


@every_precision
def test_each_precision_learns(precision):  # C45
    torch.manual_seed(0)
    model = classifier()
    updater = Updater({"adam": torch.optim.AdamW(model.parameters(), lr=2e-2)}, precision)
    losses = [updater.update(tokens([12, 8]), token_loss(model)).loss for _ in range(50)]
    assert losses[-1] < 0.4 * losses[0]


# The loss scale by itself


def test_the_scale_grows_after_as_many_applied_windows_as_its_interval():  # C26, C36
    scale = LossScale(8.0, growth_interval=3)
    values = []
    for applied in (True, True, False, True, True, True, True):  # the skip starts the count anew
        scale.applied() if applied else scale.skipped()
        values.append(scale.value)
    assert values == [8, 8, 4, 4, 4, 8, 8]


def test_factors_of_growth_and_backoff_are_used():
    scale = LossScale(9.0, growth_interval=1, growth_factor=3.0, backoff_factor=1 / 3)
    scale.applied()
    assert scale.value == 27.0
    scale.skipped()
    assert scale.value == pytest.approx(9.0)


def test_the_scale_stops_at_its_floor_and_at_its_ceiling():  # C37, C39
    low = LossScale(1.0, minimum=0.5)
    low.skipped()
    with pytest.raises(Diverged, match=r"loss scale 0\.5 cannot be lowered, its minimum is 0\.5"):
        low.skipped()
    assert low.value == 0.5
    high = LossScale(2.0**126, growth_interval=1)
    for _ in range(3):
        high.applied()
    assert high.value == 2.0**127
    assert torch.tensor(high.value).isfinite()


def test_a_restored_streak_above_the_interval_still_grows():  # C42
    scale = LossScale(8.0, growth_interval=2)
    scale.load_state_dict({**scale.state_dict(), "_growth_tracker": 5})
    scale.applied()
    assert (scale.value, scale.streak) == (16.0, 0)


def test_the_state_is_one_that_grad_scaler_reads_and_writes():
    scale = LossScale(32.0, growth_interval=7, growth_factor=4.0, backoff_factor=0.25)
    scale.applied()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.load_state_dict(scale.state_dict())
    assert scaler.state_dict() == scale.state_dict()
    restored = LossScale()
    restored.load_state_dict(scaler.state_dict())
    assert restored.state_dict() == scale.state_dict()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initial": 0.0}, "0 < minimum <= initial"),
        ({"initial": float("inf")}, "0 < minimum <= initial"),
        ({"initial": float("nan")}, "0 < minimum <= initial"),
        ({"initial": 1.0, "minimum": 2.0}, "0 < minimum <= initial"),
        ({"minimum": 0.0}, "0 < minimum <= initial"),
        ({"growth_interval": 0}, "growth_interval must be at least 1, but got 0"),
        ({"growth_factor": 1.0}, "growth_factor > 1"),
        ({"backoff_factor": 1.0}, "backoff_factor < 1"),
        ({"backoff_factor": 0.0}, "backoff_factor < 1"),
    ],
)
def test_an_impossible_scale_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LossScale(**arguments)
