"""What something must provide to be searched over: a config whose fields are the search space, and a task."""

import functools
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, get_args

import torch

from trainables.context import Context
from trainables.precision import Precision, autocast, resolve
from trainables.task.config import Config, TaskConfig
from trainables.task.datasets import DataSet, Use, digest_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor
    from torch.optim.lr_scheduler import ReduceLROnPlateau

    from trainables.update import Updater, UpdateReport
    from trainables.update.updater import Scheduler


class Task(ABC, Generic[Config]):
    """Something to train: subclass it, name an objective, and fill in build, train_batches, loss and evaluate.

    Attributes:
        objective: The metric of `evaluate` that the search improves, and `mode`, "min" or "max".
        trials: Of a search that does not say how many: more for a task whose trials take seconds.
        units: The unit of metrics, by name, in a few words. The summary of a search shows those that the best report
            has, beside what the report has as a baseline of the objective: "val/score_baseline" for "val/score".
        config: The parameters of this trial. Set before `build`, as is `context`.
        context: Device, rank, world size and a generator that is seeded anew for each epoch.
        modules: By name; `build` fills it. Moved to the device and made equal on all ranks afterwards.
        optimizers: By name; `build` fills it.
        schedulers: Learning-rate schedules, stepped once per applied update; `build` may fill it. ReduceLROnPlateau
            is stepped with the objective after each evaluation.
        transforms: By update, what changes its finished gradients in place, as noise does; `build` may fill it. It
            runs before they are checked and clipped.
        updates: Which optimizers step together, by the name of the update. Default: all of them in one, "train".
        epoch_samples: Weight after which an epoch of an endless stream ends, on all ranks together. What its last
            window had beyond that, the next epoch has less, so that trials with other windows see as much. None: no
            limit.
        reduce_each: Of sharded modules: reduce gradients after each micro-batch, and not once per window. It spares
            the memory for whole gradients.
        unshard_to_evaluate: Of sharded modules: keep all weights whole during an evaluation. If not, all ranks must
            make the same forward passes in `evaluate`, and `pictures` cannot be drawn.
        updaters: One per update, by name. Set after `build`.
        named_data: What `dataset` named.
    """

    objective: ClassVar[str]
    mode: ClassVar[Literal["min", "max"]] = "min"
    trials: ClassVar[int] = 16
    units: ClassVar[Mapping[str, str]] = {}
    epoch_samples: float | None = None
    reduce_each: bool = False
    unshard_to_evaluate: bool = True

    def __init__(self, config: Config, context: Context | None = None) -> None:
        self.config = config
        self.context = context or Context()
        self.modules: dict[str, torch.nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.schedulers: list[Scheduler | ReduceLROnPlateau] = []
        self.transforms: dict[str, Callable[[], None]] = {}
        self.updates: dict[str, list[str]] = {}
        self.updaters: dict[str, Updater] = {}
        self.named_data: list[DataSet] = []
        self.noted: dict[str, tuple[Tensor | float, Tensor | float]] = {}
        self.noting: dict[str, tuple[Tensor | float, Tensor | float]] = {}

    @classmethod
    def config_class(cls) -> type[TaskConfig]:
        """The config that the task was declared with: `MyConfig` of `class MyTask(Task[MyConfig])`.

        Raises:
            TypeError: The class was declared without one.
        """
        for base in cls.__mro__:
            for generic in base.__dict__.get("__orig_bases__", ()):
                for argument in get_args(generic):
                    if isinstance(argument, type) and issubclass(argument, TaskConfig):
                        return argument
        raise TypeError(f"{cls.__name__} must be declared as class {cls.__name__}(Task[ItsConfig]).")

    @classmethod
    def judged_from(cls, config: Config) -> int:
        """The first epoch whose report says something of the trial's end: no scheduler that counts epochs judges
        before, unless a search says `--grace-period`.

        Args:
            config: With the settings of the search; what is searched has its default in it.
        """
        return 1

    @classmethod
    def prepare(cls, config: Config, folder: Path) -> None:
        """Write to `folder` what all workers must have alike, as a corpus that is gathered on this machine.

        Called once by the driver, before the first trial of a search; it lies in the folder of the search, and one that
        is taken up has it as it was. In a trial, `self.files` is where it is.

        Args:
            config: With the settings of the search; what is searched has its default in it.
        """

    @functools.cached_property
    def files(self) -> Path:
        """The folder that `prepare` filled. Without a search, as in a notebook, it is filled now, for this task."""
        if self.context.files is not None:
            return self.context.files
        self._own_files = tempfile.TemporaryDirectory(prefix="searchlight-")
        self.prepare(self.config, Path(self._own_files.name))
        return Path(self._own_files.name)

    @abstractmethod
    def build(self) -> None:
        """Fill `modules` and `optimizers`."""

    @abstractmethod
    def train_batches(self, epoch: int) -> Iterable[Any]:
        """This rank's micro-batches of `epoch`, counted from 0, without padding or duplicates."""

    @abstractmethod
    def loss(self, batch: Any) -> "tuple[Tensor, float | Tensor]":
        """The mean loss of a micro-batch and its weight, the number of elements in that mean."""

    @abstractmethod
    def evaluate(self) -> Mapping[str, float | tuple[float, float]]:
        """Metrics by name: a float that holds for all ranks, or this rank's (mean, weight) to be reduced over them.

        Called in evaluation mode, without autograd, with averaged weights if there are any, and in fp32: use
        `with self.autocast():` where the trial's own precision is wanted.
        """

    def pictures(self) -> "Mapping[str, NDArray[np.uint8]]":
        """What people should see of the trial, by name: RGB of shape (height, width, 3). Its run in MLflow has them.

        Called right after an `evaluate` whose report is better than all before it, and as it is, but on rank 0 alone:
        it must not wait for other ranks. Names are of letters, digits, - and _.
        """
        return {}

    def update(self, window: Sequence[Any]) -> None:
        """Train on one window. Override it for several updates per window."""
        for updater in self.updaters.values():
            updater.update(window, self.loss)

    def after_update(self, report: "UpdateReport") -> None:
        """Called after each update, with what happened."""

    def predict(self, inputs: Any) -> Any:
        """What the trained task answers, once it is a model in MLflow: a tensor, an array, or a dict of them.

        Called as `evaluate` is, with averaged weights if there are any. By default, the only module is applied to the
        inputs in the trial's own precision.

        Args:
            inputs: A tensor on the device, or a dict of them; text comes in arrays.

        Raises:
            ValueError: There are several modules, and the task does not say what they answer together.
        """
        if len(self.modules) != 1:
            raise ValueError(
                f"{type(self).__name__} must define predict(self, inputs), since it has {len(self.modules)} modules, "
                f"{', '.join(self.modules)}: what do they answer together?"
            )
        (module,) = self.modules.values()
        with self.autocast():
            return module(inputs)

    def example(self) -> Any:
        """A few inputs that `predict` takes, from which a model in MLflow has its signature.

        By default, the first element of the first micro-batch, if that is a tuple or list, else all of it; eight rows.

        Raises:
            ValueError: There is no micro-batch, or none of tensors.
        """
        batch: Any = next(iter(self.train_batches(0)), None)
        inputs = batch[0] if isinstance(batch, tuple | list) else batch
        try:
            return {name: part[:8] for name, part in inputs.items()} if isinstance(inputs, dict) else inputs[:8]
        except TypeError as error:
            raise ValueError(
                f"{type(self).__name__} must define example(self), since its micro-batches begin with "
                f"{type(inputs).__name__}: what does predict take?"
            ) from error

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold beyond modules, optimizers and schedules: the same on all ranks, rank 0's is
        written."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""

    def dataset(
        self, name: str, data: Any = None, *, digest: str = "", source: str = "", use: Use = "training"
    ) -> None:
        """Say in `build` what the trial trains or evaluates on: its runs in MLflow have it, and a search that is taken
        up with other data says so.

        Args:
            name: Of the data set.
            data: What its digest is computed of, see `trainables.task.digest_of`. On rank 0 alone, in each trial:
                a GB takes seconds. Of so much, keep the digest with `self.context.cache`.
            digest: Instead of data.
            source: Where it comes from, for people: a URL, a path, a package and its version.
            use: "training" or "evaluation". What serves both is named twice.
        """
        if (data is None) == (not digest):
            raise ValueError(f"dataset must get data or a digest, but got {'neither' if data is None else 'both'}.")
        if self.context.rank == 0:
            self.named_data.append(DataSet(name, digest or digest_of(data), source, use))

    def log(self, name: str, value: "Tensor | float", weight: "Tensor | float" = 1.0) -> None:
        """Note a term of the loss; its weighted mean over the epoch and all ranks is reported as `train/<name>`.

        What is noted in a window that is not applied counts for nothing, as its loss does.

        Raises:
            ValueError: The loop itself reports a metric of that name.
        """
        if name in ("loss", "grad_norm", "updates"):
            raise ValueError(f"log must get a name that is not reported already, but got {name!r}.")
        value = value.detach().float() if isinstance(value, torch.Tensor) else value
        part: Tensor | float
        if isinstance(weight, torch.Tensor):  # a mean over nothing is NaN
            part = torch.where(weight == 0, 0.0, value * weight)
        else:
            part = value * weight if weight else 0.0
        total, weights = self.noting.get(name, (0.0, 0.0))
        self.noting[name] = (total + part, weights + weight)

    def keep_noted(self) -> None:
        """Count what was noted since the last update."""
        for name, (part, weight) in self.noting.items():
            total, weights = self.noted.get(name, (0.0, 0.0))
            self.noted[name] = (total + part, weights + weight)
        self.noting.clear()

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision context of this trial, for evaluation."""
        return autocast(self.precision, self.context.device)

    @property
    def precision(self) -> Precision:
        """The precision that this trial runs in: that of the config, or what "auto" is on this device."""
        return resolve(self.config.precision, self.context.device)
