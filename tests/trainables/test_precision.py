"""What is asked for is what runs, everything that is kept is fp32, and the loss scale obeys its bounds."""

import logging

import pytest
import torch
from torch import Tensor, nn

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
from trainables.context import Context
from trainables.precision import Diverged, LossScale, Precision, autocast, find_supported_precisions, resolve
from trainables.training.trainer import TrialTrainer
from trainables.update import Ema, Updater

CPU = torch.device("cpu")


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
    assert find_supported_precisions(CPU) == [Precision.FP32, Precision.BF16, Precision.FP16]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_precision_that_the_device_lacks_is_refused_and_not_replaced(precision):  # G68, C46
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
        pytest.param("cpu", ["fp32"], "fp32", id="cpu-with-neither"),
    ],
)
def test_auto_is_bf16_else_fp16_on_a_gpu_else_fp32(monkeypatch, device, runs, expected):  # C46
    monkeypatch.setattr(
        "trainables.precision._is_supported", lambda precision, on: on.type == device and precision in runs
    )
    assert resolve("auto", torch.device(device)) == expected


def test_auto_is_resolved_where_the_trial_runs_and_not_where_its_config_is_made(monkeypatch):  # C47
    monkeypatch.setattr(
        "trainables.precision._is_supported", lambda precision, on: precision == "fp32"
    )  # on the driver
    config = RegressionConfig(precision="auto")
    assert Regression(config).precision == "fp32"
    sent = config.model_dump(mode="json")
    monkeypatch.undo()  # in the worker
    task = Regression(RegressionConfig.model_validate(sent))
    assert TrialTrainer(task).task.updaters["train"].precision is Precision.BF16


def test_a_config_may_ask_for_what_only_the_worker_can_run(monkeypatch):  # C47
    monkeypatch.setattr("trainables.precision._is_supported", lambda precision, on: precision == "fp32")
    config = RegressionConfig(precision="fp16")
    with pytest.raises(ValueError, match=r"precision must be one that cpu supports, but got fp16\. Choose from fp32"):
        TrialTrainer(Regression(config))
    monkeypatch.undo()
    assert TrialTrainer(Regression(config)).task.updaters["train"].precision is Precision.FP16


def test_what_auto_came_to_is_logged(caplog):  # C46
    caplog.set_level(logging.INFO, logger="trainables")
    TrialTrainer(Regression(RegressionConfig(precision="auto"), Context("cpu")))
    assert "precision auto is bf16 on cpu" in caplog.messages


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

    class Average(Ema):
        def update(self) -> None:
            note("average")
            super().update()

    model.weight.register_hook(lambda gradient: note("backward"))
    optimizer.register_step_pre_hook(lambda *args: note("step"))
    ema = Average(dict(model.named_parameters()), 0.9)
    updater = Updater({"sgd": optimizer}, precision, ema=ema, on_update=lambda report: note("report"))
    updater.update([torch.ones(4, 3)], loss)
    assert inside == {"loss": True, "backward": False, "step": False, "average": False, "report": False}


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


def test_a_reported_loss_is_summed_in_fp32():  # A16, G71: a running sum in fp16 stops at 2048
    weight = nn.Parameter(torch.ones(1))
    updater = Updater({"sgd": torch.optim.SGD([weight], lr=1e-3)}, "fp16", loss_scale=LossScale(1.0))
    report = updater.update([samples(3)] * 1500, lambda x: ((weight * x).sum().half(), 1))
    assert report.loss == 3.0


@every_precision
def test_each_precision_learns_as_fp32_does(precision):  # C45
    finals = []
    for mode in ("fp32", precision):
        torch.manual_seed(0)
        model = classifier()
        updater = Updater({"adam": torch.optim.AdamW(model.parameters(), lr=2e-2)}, mode)
        losses = [updater.update(tokens([12, 8]), token_loss(model)).loss for _ in range(50)]
        assert losses[-1] < 0.4 * losses[0]
        finals.append(losses[-1])
    assert finals[1] == pytest.approx(finals[0], rel=5e-2)


@pytest.mark.parametrize("parameters", [torch.float32, torch.float64])
def test_inputs_in_fp64_become_fp32_unless_a_parameter_is_fp64(parameters):  # G75
    weight = nn.Parameter(torch.zeros(1, dtype=parameters))
    updater = Updater({"sgd": torch.optim.SGD([weight], lr=1.0)})
    kinds = [torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]
    received: list[torch.dtype] = []

    def loss(batch: dict[str, list[Tensor]]) -> tuple[Tensor, int]:
        received[:] = [x.dtype for x in batch["all"]]
        return (weight * batch["all"][0]).sum(), 1

    report = updater.update([{"all": [torch.ones(1, dtype=kind) for kind in kinds]}], loss)
    assert received == [parameters, *kinds[1:]]
    assert (report.outcome, weight.item(), weight.dtype) == ("applied", -1.0, parameters)


@every_precision
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers_come_as_they_are(precision, dtype):  # G75: 2**24 + 1 is no fp32, 257 no bf16
    largest = min(2**24 + 1, torch.iinfo(dtype).max)
    weight = nn.Parameter(torch.zeros(1))
    received = []

    def loss(x: Tensor) -> tuple[Tensor, int]:
        received.append(x)
        return weight.sum(), 1

    updater = Updater({"sgd": torch.optim.SGD([weight], lr=1.0)}, precision)
    updater.update([torch.tensor([largest], dtype=dtype)], loss)
    assert (received[0].dtype, received[0].item()) == (dtype, largest)


# The loss scale by itself


def test_the_scale_grows_after_as_many_applied_windows_as_its_interval():  # matrix 36, C26
    scale = LossScale(8.0, growth_interval=3)
    values = []
    for applied in (True, True, False, True, True, True, True):  # the skip starts the count anew
        scale.applied() if applied else scale.skipped()
        values.append(scale.value)
    assert values == [8, 8, 4, 4, 4, 8, 8]


def test_factors_of_growth_and_backoff_are_used():  # matrix 42
    scale = LossScale(9.0, growth_interval=1, growth_factor=3.0, backoff_factor=1 / 3)
    scale.applied()
    assert scale.value == 27.0
    scale.skipped()
    assert scale.value == pytest.approx(9.0)


def test_the_scale_stops_at_its_floor_and_at_its_ceiling():  # matrix 37, matrix 39
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


def test_a_restored_streak_above_the_interval_still_grows():  # matrix 42
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
