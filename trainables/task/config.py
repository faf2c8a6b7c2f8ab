"""The parameters of one trial: a config whose fields are the search space."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any, ClassVar, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from searchlight.trainables.precision import Precision, PrecisionName
from searchlight.trainables.trust import Trust


def searchable(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    log: bool = False,
    step: float | None = None,
    choices: Sequence[Any] | None = None,
    when: Mapping[str, Any] | None = None,
    trust: Trust = "medium",
    size: bool = False,
    description: str | None = None,
) -> Any:
    """Declare a config field that a search varies.

    Args:
        default: The value when the field is not searched.
        low: The lower end of the range of a number, included. An int field is searched in whole numbers.
        high: The upper end, included.
        log: Whether to search on a log scale.
        step: The distance between neighboring values.
        choices: The values of a categorical field, instead of a range.
        when: Search this field only in trials where the named fields have these values, as in
            `{"precision": "fp16"}` or `{"precision": ["fp16", "bf16"]}`. Other trials use its default.
        trust: How near to the default good values are expected. `--sampler mixture` proposes some configs near them.
        size: Whether the field is the size of the task, e.g. its width. Then it has no range: one search uses the
            default, and `--sizes 64,128,256` searches at each of these sizes.
        description: What the field means.

    Raises:
        ValueError: The range is empty, or the default does not lie in it.
    """
    if size:
        if any(each is not None for each in (low, high, step, choices, when)) or log:
            raise ValueError("searchable must get a range or choices, or size=True, but got both.")
        return Field(default, description=description, json_schema_extra={"size": True})
    if trust not in get_args(Trust):
        raise ValueError(f"searchable trust must be {', '.join(get_args(Trust))}, but got {trust!r}.")
    if choices is None:
        space = _build_range(default, low, high, log, step)
    elif low is not None or high is not None or log or step is not None:
        raise ValueError("searchable must get a range or choices, but got both.")
    else:
        space = {"choices": _check_choices(default, choices)}
    space["trust"] = trust
    if when is not None:
        space["when"] = {name: [_to_plain(each) for each in _to_list(value)] for name, value in when.items()}
    return Field(default, description=description, json_schema_extra={"search": space})


def _check_choices(default: Any, choices: Sequence[Any]) -> list[Any]:
    """Return the choices as plain values."""
    if default not in choices:
        raise ValueError(f"searchable default must be among its choices, but got {default!r} and {choices}.")
    values = [_to_plain(choice) for choice in choices]
    odd = [value for value in values if not isinstance(value, str | int | float | None)]
    if odd:
        raise ValueError(f"searchable choices must be text, numbers, booleans or None, but got {odd[0]!r}.")
    return values


def _build_range(default: Any, low: float | None, high: float | None, log: bool, step: float | None) -> dict[str, Any]:
    """Return the space of a field that has a range."""
    if low is None or high is None:
        raise ValueError(f"searchable must get low and high, or choices, but got {low=}, {high=}.")
    if not low < high:
        raise ValueError(f"searchable must have low < high, but got {low}..{high}. Swap the bounds.")
    if not low <= default <= high:
        raise ValueError(f"searchable default must lie in its range, but got {default} and {low}..{high}.")
    if log and step is not None:
        raise ValueError(f"searchable must get log=True or a step, but got both, {step=}.")
    if log and low <= 0:
        raise ValueError(f"searchable range must be positive with log=True, but got {low}..{high}.")
    return {"low": low, "high": high, "log": log, "step": step}


def _to_list(value: Any) -> Sequence[Any]:
    return list(value) if isinstance(value, list | tuple | set | frozenset) else [value]


def _to_plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


class ConfigPart(BaseModel):
    """A group of parameters, set as `--set part.name=value`.

    Checkpoints of earlier versions have fields that are gone. A subclass names them in `_gone`, each with the value
    that had no effect; `...` stands for any value. These values are left out, and others are refused.
    """

    _gone: ClassVar[Mapping[str, Any]] = {}

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_gone(cls, values: Any) -> Any:
        if not cls._gone or not isinstance(values, Mapping):
            return values
        for name, idle in cls._gone.items():
            if values.get(name, idle) != idle and idle is not ...:
                raise ValueError(f"{name} is gone: it must be {idle}, but got {values[name]!r}")
        return {name: value for name, value in values.items() if name not in cls._gone}


class TaskConfig(ConfigPart):
    """The parameters of one trial. Subclass it for a task. Fields declared with `searchable` are searched.

    Examples:
        >>> class DigitsConfig(TaskConfig):
        ...     lr: float = searchable(1e-2, low=1e-4, high=1.0, log=True)
        ...     activation: str = searchable("relu", choices=["relu", "tanh"])
        ...     batch_size: int = Field(32, ge=1, description="samples per micro-batch")
        >>> config = DigitsConfig(lr=0.1, epochs=3)
        >>> config.lr, config.activation, config.epochs, config.accumulation
        (0.1, 'relu', 3, 1)

    A subclass may name the field of its micro-batch size in `micro_batch_field`, as `ClassVar[str]`. A trial that runs
    out of memory then continues with smaller micro-batches and more of them for each update. Name it only if that gives
    the same updates: the loss of a sample must not depend on the others of its micro-batch, as it does with BatchNorm.
    """

    micro_batch_field: ClassVar[str] = ""

    precision: PrecisionName = searchable(
        Precision.FP32,
        choices=list(Precision),
        trust="none",  # no user wrote it
        description="format of the forward pass; auto: the best of the device",
    )
    accumulation: int = Field(1, ge=1, description="micro-batches per optimizer update")
    epochs: int = Field(9, ge=1, description="epochs of a trial that is never stopped early")
    max_grad_norm: float | None = Field(1.0, gt=0, description="clip the gradient's norm to this; none: no clipping")
    ema_decay: float | None = Field(None, gt=0, lt=1, description="decay of averaged weights; none: no averaging")
    loss_scale: float = Field(2.0**16, gt=0, le=2.0**127, description="initial loss scale, fp16 only")
    loss_scale_growth: int = Field(2000, ge=1, description="applied updates before the loss scale doubles, fp16 only")
    max_consecutive_skips: int = Field(50, ge=0, description="largest number of consecutive non-finite windows")
    max_loss_rise: float | None = Field(
        1000.0, gt=1, description="largest factor between a loss and the first ones; none: no limit"
    )
    gradient_check: Literal["skip", "module", "parameter"] = Field(
        "module", description="what must have a gradient in the first updates"
    )
    deterministic: bool = Field(
        False,
        description="same bits each time on a GPU, too; slower, and fails where an operation has no such algorithm",
    )
    seed: int = Field(0, ge=0, lt=2**31, description="seed of weights, data order and dropout")

    def total_updates(self, micro_batches: int) -> int:
        """Return the number of updates of a whole trial, for schedules such as OneCycleLR.

        Skipped windows are not updates, so a trial never exceeds a schedule of this length.

        Args:
            micro_batches: The number of micro-batches of one epoch, as `context.micro_batches` returns it.
        """
        return self.epochs * math.ceil(micro_batches / self.accumulation)

    def split_micro_batches(self) -> dict[str, int] | None:
        """Return the fields that change if each micro-batch is split into the fewest equal parts, or None if none can.

        >>> class DigitsConfig(TaskConfig):
        ...     micro_batch_field = "batch_size"
        ...     batch_size: int = 32
        >>> DigitsConfig(batch_size=12, accumulation=2).split_micro_batches()
        {'batch_size': 6, 'accumulation': 4}
        """
        if not self.micro_batch_field:
            return None
        size: int = getattr(self, self.micro_batch_field)
        for parts in (parts for parts in range(2, size + 1) if size % parts == 0):
            split = {self.micro_batch_field: size // parts, "accumulation": self.accumulation * parts}
            with suppress(ValidationError):  # the task may refuse these values
                type(self).model_validate({**self.model_dump(), **split})
                return split
        return None


Config = TypeVar("Config", bound=TaskConfig)


@contextmanager
def renamed_errors(names: Mapping[str, str]) -> Iterator[None]:
    """Replace a key of `names` at the start of a ValueError's message by its value, the name that a user knows."""
    try:
        yield
    except ValueError as error:
        for general, name in names.items():
            if str(error).startswith(general):
                raise ValueError(name + str(error).removeprefix(general)) from error
        raise
