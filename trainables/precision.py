"""Precision modes: what runs in half precision, what a device supports, and the fp16 loss scale.

The functions import torch themselves, since the driver and the workers of programs need the names alone.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    import torch

AUTO = "auto"
DivergenceKind = Literal["skips", "loss_scale", "loss", "objective", "weights", "other"]
DIVERGENCE_KINDS: tuple[str, ...] = get_args(DivergenceKind)
NOTHING = contextlib.nullcontext()
LARGEST_SCALE = 2.0**127  # the largest power of 2 in fp32: an infinite scale would make every window non-finite


@dataclass(frozen=True)
class Mode:
    """The requirements of a precision.

    Attributes:
        dtype: The name of the dtype of matrix products, in torch.
        autocast: Whether forward and loss run under autocast. fp32 does not, and stays a plain loop.
        loss_scale: Whether small gradients vanish unless the loss is scaled.
        cuda_test: Returns whether a GPU supports the dtype. Default: try a small product, as on other devices.
    """

    dtype: str
    autocast: bool = True
    loss_scale: bool = False
    cuda_test: Callable[["torch.device"], bool] | None = None


def _has_native_bf16(device: "torch.device") -> bool:
    import torch

    # Older GPUs emulate bf16 at a fraction of fp32's speed: a small product would succeed there.
    with torch.cuda.device(device):  # torch asks the current one
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


class Precision(StrEnum):
    """The numeric format of forward pass and loss. Parameters, gradients and optimizer state are always fp32.

    This table lists all precisions. To add a precision, add a line.
    """

    FP32 = "fp32", Mode("float32", autocast=False)
    BF16 = "bf16", Mode("bfloat16", cuda_test=_has_native_bf16)
    FP16 = "fp16", Mode("float16", loss_scale=True)

    mode: Mode

    def __new__(cls, name: str, mode: Mode) -> "Precision":
        precision = str.__new__(cls, name)
        precision._value_, precision.mode = name, mode
        return precision

    @property
    def dtype(self) -> "torch.dtype":
        """The dtype of matrix products."""
        import torch

        dtype: torch.dtype = getattr(torch, self.mode.dtype)
        return dtype


if TYPE_CHECKING:  # the type of a config field; a type checker cannot read the names from the table
    PrecisionName = str
else:
    PrecisionName = Literal[(*(precision.value for precision in Precision), AUTO)]


class Diverged(RuntimeError):
    """Ends a trial that cannot continue. The search counts it as a result, not as a failure of the machine.

    Attributes:
        metrics: The report of the epoch in which divergence was found, if there is one.
        agreed: Whether all ranks raise it at the same place, so that none of them waits for another.
        kind: How divergence was found: too many skipped windows in a row, a loss scale at its minimum, a loss far
            above its start, a non-finite objective or weight. "other" if the task itself raises it.
    """

    def __init__(
        self,
        message: str,
        metrics: dict[str, float] | None = None,
        agreed: bool = False,
        kind: DivergenceKind = "other",
    ) -> None:
        super().__init__(message)
        self.metrics = metrics
        self.agreed = agreed
        self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        return Diverged, (*self.args, self.metrics, self.agreed, self.kind)


def autocast(precision: Precision, device: "torch.device") -> contextlib.AbstractContextManager[Any]:
    """Return the autocast context of a forward pass and its loss. fp32 needs none and gets an empty context."""
    if not precision.mode.autocast:
        return NOTHING
    import torch

    return torch.autocast(device.type, dtype=precision.dtype)


def find_supported_precisions(device: "torch.device") -> list[Precision]:
    """Return the precisions that `device` runs natively."""
    return [precision for precision in Precision if _is_supported(precision, device)]


def lacks_kernels(precision: Precision, device: "torch.device") -> bool:
    """Return whether `device` runs products in `precision`, but not an LSTM.

    oneDNN has LSTMs in bf16 for CPUs with AVX-512, and in fp16 for few CPUs.
    """
    import torch

    try:
        with torch.random.fork_rng(devices=[]), autocast(precision, device):
            torch.nn.LSTM(1, 1, device=device)(torch.ones(1, 1, 1, device=device))
    except RuntimeError:
        return _is_supported(precision, device)
    return False


def choose_common(precisions: Sequence[Precision]) -> Precision:
    """Return what "auto" is for ranks whose devices would get `precisions`: the weakest device decides."""
    return max(precisions, key=[Precision.BF16, Precision.FP16, Precision.FP32].index)


def resolve(requested: str, device: "torch.device") -> Precision:
    """Return the precision named `requested`. "auto" is bf16 if `device` has it, else fp16 on a GPU, else fp32.

    Raises:
        ValueError: `requested` is not a precision, or `device` does not support it.
    """
    if requested == AUTO:
        preferred = [Precision.BF16, Precision.FP16] if device.type == "cuda" else [Precision.BF16]
        return next((precision for precision in preferred if _is_supported(precision, device)), Precision.FP32)
    precision = Precision.__members__.get(requested.upper())
    if precision is None or precision != requested:
        raise ValueError(f"precision must be one of {', '.join(Precision)}, {AUTO}, but got {requested!r}.")
    if not _is_supported(precision, device):
        choices = ", ".join(find_supported_precisions(device))
        raise ValueError(f"precision must be one that {device} supports, but got {requested}. Choose from {choices}.")
    return precision


@functools.cache  # a device does not change
def _is_supported(precision: Precision, device: "torch.device") -> bool:
    if not precision.mode.autocast:
        return True
    import torch

    if device.type == "cuda" and precision.mode.cuda_test is not None:
        return precision.mode.cuda_test(device)
    try:
        with autocast(precision, device):
            product = torch.ones(2, 2, device=device) @ torch.ones(2, 2, device=device)
    except RuntimeError:  # torch raises it for unsupported dtypes
        return False
    return product.dtype == precision.dtype


class LossScale:
    """The factor that keeps small fp16 gradients from vanishing, updated once per window.

    The scale is multiplied by `growth_factor` after `growth_interval` applied windows in a row, and by `backoff_factor`
    after each window with a non-finite gradient. Unlike `torch.amp.GradScaler`, it has a minimum. The scale of
    GradScaler can fall until its reciprocal is infinite. Then non-finite gradients pass the check and are applied.

    Args:
        initial: The scale of the first window, at most 2**127.
        growth_interval: The number of applied windows in a row before the scale grows.
        minimum: The smallest scale.
        growth_factor: The factor above 1.
        backoff_factor: The factor between 0 and 1.

    Raises:
        ValueError: An argument is out of range.
    """

    def __init__(
        self,
        initial: float = 2.0**16,
        growth_interval: int = 2000,
        minimum: float = 2.0**-14,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
    ) -> None:
        if not 0 < minimum <= initial <= LARGEST_SCALE:
            raise ValueError(f"loss scale must have 0 < minimum <= initial <= 2**127, but got {minimum=}, {initial=}.")
        if growth_interval < 1:
            raise ValueError(f"growth_interval must be at least 1, but got {growth_interval}.")
        if growth_factor <= 1 or not 0 < backoff_factor < 1:
            raise ValueError(
                "loss scale must have growth_factor > 1 and 0 < backoff_factor < 1, "
                f"but got {growth_factor=}, {backoff_factor=}."
            )
        self.value = float(initial)
        self.streak = 0
        self.growth_interval = growth_interval
        self.minimum = float(minimum)
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor

    def applied(self) -> None:
        """Count a window whose update was applied."""
        self.streak += 1
        if self.streak >= self.growth_interval:  # not ==: the streak of a state may lie above its interval
            self.value = min(self.value * self.growth_factor, LARGEST_SCALE)
            self.streak = 0

    def skipped(self) -> None:
        """Lower the scale after a window with a non-finite gradient or loss.

        Raises:
            Diverged: The scale would fall below `minimum`: the gradients are not finite at any scale.
        """
        # After n windows in a row the scale is initial * backoff_factor ** n, which would end at 0.
        self.streak = 0
        lower = self.value * self.backoff_factor
        if lower < self.minimum:
            raise Diverged(
                f"loss scale {self.value:g} cannot be lowered, its minimum is {self.minimum:g}", kind="loss_scale"
            )
        self.value = lower

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and its settings under the keys of `torch.amp.GradScaler`."""
        return {
            "scale": self.value,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self.streak,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of this class or of `torch.amp.GradScaler`.

        Raises:
            ValueError: The GradScaler was disabled, or the scale is out of range.
        """
        if missing := {*self.state_dict()} - {*state}:
            raise ValueError(
                f"the state of a loss scale must have {', '.join(sorted(missing))}, but got {dict(state)}. "
                "A disabled GradScaler has none: make a new LossScale."
            )
        if not 0 < float(state["scale"]) <= LARGEST_SCALE:
            raise ValueError(f"the scale of a loss scale must be above 0 and at most 2**127, but got {state['scale']}.")
        self.value = float(state["scale"])
        self.growth_factor = state["growth_factor"]
        self.backoff_factor = state["backoff_factor"]
        self.growth_interval = state["growth_interval"]
        self.streak = state["_growth_tracker"]
