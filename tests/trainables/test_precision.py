"""Test that what is asked for is what runs, that what is kept is fp32, and that the loss scale obeys its bounds."""

import contextlib
import logging
import math

import pytest
import torch
from torch import Tensor, nn

from searchlight.trainables.context import Context
from searchlight.trainables.precision import (
    Diverged,
    LossScale,
    Precision,
    autocast,
    choose_common,
    find_supported_precisions,
    resolve,
)
from searchlight.trainables.training.trainer import TrialTrainer
from searchlight.trainables.update import Ema, Updater
from tests.trainables.toy_models import (
    PRECISIONS,
    Regression,
    RegressionConfig,
    classifier,
    every_precision,
    recorded_gradients,
    samples,
    token_loss,
    tokens,
)

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("on_device")
in_half_precision = pytest.mark.parametrize("precision", ["bf16", "fp16"])


def pretend(monkeypatch: pytest.MonkeyPatch, runs: list[str], device: str = "cpu") -> None:
    """Let `device` support the precisions `runs` and no others."""
    monkeypatch.setattr(
        "searchlight.trainables.precision._is_supported", lambda precision, on: on.type == device and precision in runs
    )


def test_cpu_supports_all_precisions():  # G68
    assert find_supported_precisions(CPU) == [Precision.FP32, Precision.BF16, Precision.FP16]


@in_half_precision
def test_precision_that_the_device_lacks_is_refused(precision):  # G68, C46
    with pytest.raises(ValueError, match=f"that meta supports, but got {precision}. Choose from fp32"):
        resolve(precision, torch.device("meta"))
    with pytest.raises(ValueError, match=f"that meta supports, but got {precision}. Choose from fp32"):
        Updater({"sgd": torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)}, precision, device="meta")


@pytest.mark.parametrize(
    ("device", "runs", "expected"),
    [
        pytest.param("cuda", PRECISIONS, "bf16", id="gpu-with-both"),
        pytest.param("cuda", ["fp32", "fp16"], "fp16", id="gpu-without-bf16"),
        pytest.param("cuda", ["fp32"], "fp32", id="gpu-with-neither"),
        pytest.param("cpu", PRECISIONS, "bf16", id="cpu-with-both"),
        pytest.param("cpu", ["fp32", "fp16"], "fp32", id="cpu-without-bf16"),
    ],
)
def test_auto_is_bf16_else_fp16_on_a_gpu_else_fp32(monkeypatch, device, runs, expected):  # C46
    pretend(monkeypatch, runs, device)
    assert resolve("auto", torch.device(device)) == expected


@pytest.mark.parametrize(("requested", "expected"), [("auto", Precision.BF16), ("fp16", Precision.FP16)])
def test_precision_is_resolved_where_the_trial_runs(monkeypatch, requested, expected):  # C47
    pretend(monkeypatch, ["fp32"])  # on the driver
    config = RegressionConfig(precision=requested)
    if requested == "auto":
        assert Regression(config).precision == "fp32"
    else:
        with pytest.raises(ValueError, match=r"must be one that cpu supports, but got fp16\. Choose from fp32"):
            TrialTrainer(Regression(config))
    sent = config.model_dump(mode="json")
    monkeypatch.undo()  # in the worker
    task = Regression(RegressionConfig.model_validate(sent))
    assert TrialTrainer(task).task.updaters["train"].precision is expected


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [(["bf16", "fp16"], "fp16"), (["bf16", "bf16"], "bf16"), (["fp32", "bf16"], "fp32")],
)
def test_weakest_device_decides_the_common_precision(ranks, expected):
    assert choose_common([Precision(each) for each in ranks]) == expected


def test_bf16_is_asked_of_the_device_itself(monkeypatch):
    present = ["none"]

    @contextlib.contextmanager
    def make_current(device):
        present.append(str(device))
        yield
        present.pop()

    monkeypatch.setattr(torch.cuda, "device", make_current)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: present[-1] == "cuda:1")
    test = Precision.BF16.mode.cuda_test
    assert [test(torch.device("cuda", index)) for index in (1, 2)] == [True, False]


def test_precision_that_auto_came_to_is_logged(caplog):  # C46
    caplog.set_level(logging.INFO, logger="searchlight")
    TrialTrainer(Regression(RegressionConfig(precision="auto"), Context("cpu")))
    TrialTrainer(Regression(RegressionConfig(precision="bf16"), Context("cpu")))  # one that was named is not logged
    assert caplog.messages == ["precision auto is bf16 on cpu"]


@pytest.mark.parametrize("precision", ["float16", "FP16"])
def test_unknown_precision_raises_value_error(precision):
    with pytest.raises(ValueError, match=f"must be one of fp32, bf16, fp16, auto, but got '{precision}'"):
        resolve(precision, CPU)


def test_fp32_leaves_autocast_as_it_is():  # G74
    with autocast(Precision.FP32, CPU):
        assert not torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16), autocast(Precision.FP32, CPU):
        assert torch.is_autocast_enabled("cpu")


@every_precision
def test_only_the_loss_runs_under_autocast(precision):  # G68, G69, C46
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inside, dtypes = {}, []

    def note(name: str) -> None:
        inside[name] = torch.is_autocast_enabled(model.weight.device.type)

    def loss(x: Tensor) -> tuple[Tensor, int]:
        note("loss")
        outputs = model(x)
        dtypes.append(outputs.dtype)
        return outputs.float().square().mean(), len(x)

    class Average(Ema):
        def update(self) -> None:
            note("average")
            super().update()

    model.weight.register_hook(lambda gradient: note("backward"))
    optimizer.register_step_pre_hook(lambda *args: note("step"))
    ema = Average(dict(model.named_parameters()), 0.9)
    updater = Updater({"sgd": optimizer}, precision, ema=ema, on_update=lambda report: note("report"))
    updater.update([torch.full((4, 3), 0.01)] * 2, loss)
    expected = dict.fromkeys(("loss", "backward", "step", "average", "report"), False)
    assert inside == expected | {"loss": precision != "fp32"}
    assert dtypes == [Precision(precision).dtype] * 2


@in_half_precision
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


@in_half_precision
@pytest.mark.parametrize("on_device", [False, True], ids=["number", "tensor"])
def test_half_precision_losses_are_summed_exactly(precision, on_device):  # A16, G71: a sum in fp16 stops at 2048
    weight = nn.Parameter(torch.full((1,), 8.0))
    count = torch.tensor(10_000) if on_device else 10_000  # 8 * 10,000 is infinite in fp16
    updater = Updater({"sgd": torch.optim.SGD([weight], lr=1.0)}, precision, loss_scale=LossScale(2.0**11))
    report = updater.update([samples(1)] * 300, lambda x: ((weight * x).sum().to(Precision(precision).dtype), count))
    assert (report.outcome, report.loss, weight.item()) == ("applied", 8.0, 7.0)


@in_half_precision
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


@in_half_precision
def test_half_precision_learns_as_fp32_does(precision):  # C45
    ratios = []
    for seed in range(3):
        finals = []
        for mode in ("fp32", precision):
            torch.manual_seed(seed)
            model = classifier()
            updater = Updater({"adam": torch.optim.AdamW(model.parameters(), lr=2e-2)}, mode)
            losses = [updater.update(tokens([12, 8], seed), token_loss(model)).loss for _ in range(50)]
            assert losses[-1] < 0.4 * losses[0]
            finals.append(losses[-1])
        ratios.append(finals[1] / finals[0])
    assert sorted(ratios)[1] == pytest.approx(1, abs=5e-2)  # in the median of the seeds


def test_loss_scale_stops_at_its_floor_and_at_its_ceiling():  # matrix 37, matrix 39
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


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (torch.amp.GradScaler("cpu", enabled=False).state_dict(), r"must have .*scale, but got \{\}\. A disabled"),
        ({**LossScale().state_dict(), "scale": math.inf}, r"above 0 and at most 2\*\*127, but got inf"),
    ],
    ids=["disabled", "infinite"],
)
def test_loss_scale_refuses_a_state_it_cannot_use(state, message):
    scale = LossScale(8.0)
    with pytest.raises(ValueError, match=message):
        scale.load_state_dict(state)
    assert scale.value == 8.0


def test_loss_scale_of_a_streak_above_its_interval_grows():  # matrix 42
    scale = LossScale(9.0, growth_interval=2, growth_factor=3.0, backoff_factor=1 / 3)
    scale.load_state_dict({**scale.state_dict(), "_growth_tracker": 5})
    scale.applied()
    assert (scale.value, scale.streak) == (27.0, 0)
    scale.skipped()
    assert scale.value == pytest.approx(9.0)


def test_loss_scale_shares_its_state_with_grad_scaler():
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
        *(
            ({"initial": initial}, r"0 < minimum <= initial <= 2\*\*127")
            for initial in (1e39, 2.0**128, math.inf, math.nan)
        ),
        ({"initial": 1.0, "minimum": 2.0}, "0 < minimum <= initial"),
        ({"minimum": 0.0}, "0 < minimum <= initial"),
        ({"growth_interval": 0}, "growth_interval must be at least 1, but got 0"),
        ({"growth_factor": 1.0}, "growth_factor > 1"),
        ({"backoff_factor": 1.0}, "backoff_factor < 1"),
        ({"backoff_factor": 0.0}, "backoff_factor < 1"),
    ],
)
def test_impossible_loss_scale_raises_value_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        LossScale(**arguments)
