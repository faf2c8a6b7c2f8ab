"""The interface of a task that can be searched over."""

import functools
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, get_args

import torch

from searchlight.trainables.context import Context
from searchlight.trainables.precision import Precision, autocast, resolve
from searchlight.trainables.task.config import Config, TaskConfig
from searchlight.trainables.task.datasets import DataSet, Use, digest_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor
    from torch.optim.lr_scheduler import ReduceLROnPlateau

    from searchlight.trainables.update import Updater, UpdateReport
    from searchlight.trainables.update.arguments import Scheduler


class Task(ABC, Generic[Config]):
    """A training task. Subclass it, name an objective, and define build, train_batches, loss and evaluate.

    Attributes:
        objective: The name of the metric of `evaluate` that the search improves.
        mode: "min" or "max", the direction of the objective.
        trials: The default number of trials of a search. Raise it for a task whose trials take seconds.
        units: The unit of each metric, by the metric's name. The summary of a search shows these metrics of the best
            report. A report may hold a baseline of its objective: "val/score_baseline" for "val/score".
        config: The parameters of this trial. Set before `build`, as is `context`.
        context: The device, rank, world size and random generator of this worker.
        modules: The modules to train, by name. `build` fills this dict. Afterwards, the training loop moves the modules
            to the device and copies the weights of rank 0 to all ranks.
        optimizers: The optimizers, by name. `build` fills this dict. Each trainable parameter belongs to one of them.
        schedulers: Learning-rate schedules, stepped once per applied update. `build` may fill this list.
            ReduceLROnPlateau is stepped with the objective after each evaluation.
        transforms: For each update, a function that changes the finished gradients in place, e.g. adds noise. It runs
            before gradients are checked and clipped. `build` may fill this dict.
        updates: The names of the optimizers that step together, by the name of the update. Default: one update,
            "train", with all optimizers.
        epoch_samples: The weight after which an epoch of an endless stream ends, summed over all ranks. If the last
            window exceeds it, the next epoch is shorter by the excess. None: no limit.
        reduce_each: Whether sharded modules reduce gradients after each micro-batch instead of once per window. This
            saves the memory of whole gradients.
        unshard_to_evaluate: Whether sharded modules keep whole weights during an evaluation. If not, all ranks must
            make the same forward passes in `evaluate`, and `pictures` cannot be rendered.
        updaters: The `Updater` of each update, by name. Set after `build`.
        named_data: The data sets that `dataset` recorded.

    Examples:
        It learns the slope of a line.

        >>> class LineConfig(TaskConfig):
        ...     lr: float = 0.1
        >>> class Line(Task[LineConfig]):
        ...     objective = "val/loss"
        ...     def build(self):
        ...         self.modules = {"line": torch.nn.Linear(1, 1)}
        ...         self.optimizers = {"sgd": torch.optim.SGD(self.modules["line"].parameters(), self.config.lr)}
        ...     def train_batches(self, epoch):
        ...         yield torch.linspace(-1.0, 1.0, 8).reshape(8, 1)
        ...     def loss(self, x):
        ...         return (self.modules["line"](x) - 2 * x).square().mean(), len(x)
        ...     def evaluate(self):
        ...         return {"val/loss": abs(self.modules["line"].weight.item() - 2)}
        >>> from searchlight.trainables.training.trainer import train
        >>> reports = list(train(Line(LineConfig(epochs=20))))
        >>> reports[-1]["val/loss"] < reports[0]["val/loss"]
        True
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
        """Return the config class of the task: `MyConfig` of `class MyTask(Task[MyConfig])`.

        Raises:
            TypeError: The task is declared without a config class.
        """
        for base in cls.__mro__:
            for generic in base.__dict__.get("__orig_bases__", ()):
                for argument in get_args(generic):
                    if isinstance(argument, type) and issubclass(argument, TaskConfig):
                        return argument
        raise TypeError(f"{cls.__name__} must be declared as class {cls.__name__}(Task[ItsConfig]).")

    @classmethod
    def judged_from(cls, config: Config) -> int:
        """Return the first epoch whose report may end a trial, counted from 1. `--grace-period` overrides it.

        Args:
            config: The values that the search fixes, and the defaults of searched fields.
        """
        return 1

    @classmethod
    def prepare(cls, config: Config, folder: Path) -> None:
        """Write files that must be the same on all workers, e.g. a corpus that only the driver's machine has.

        The driver calls this method once, before the first trial of a search. A resumed search uses the same files.

        Args:
            config: The values that the search fixes, and the defaults of searched fields.
            folder: The folder for the files, a part of the search's folder. In a trial, its path is `self.files`.
        """

    @functools.cached_property
    def files(self) -> Path:
        """The folder that `prepare` filled. Without a search, the first access calls `prepare`."""
        if self.context.files is not None:
            return self.context.files
        folder = Path(tempfile.mkdtemp(prefix="searchlight-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)  # with the task, or when the process ends
        self.prepare(self.config, folder)
        return folder

    @abstractmethod
    def build(self) -> None:
        """Create the modules and optimizers of the trial: fill `modules`, `optimizers` and, if needed, `schedulers`.

        Parameters are fp32 in each precision.
        """

    @abstractmethod
    def train_batches(self, epoch: int) -> Iterable[Any]:
        """Return this rank's micro-batches of an epoch, without padding or duplicates.

        Args:
            epoch: The number of the epoch, counted from 0.
        """

    @abstractmethod
    def loss(self, batch: Any) -> "tuple[Tensor, float | Tensor]":
        """Return the mean loss of a micro-batch and its weight, the number of elements in that mean.

        The training loop calls this method under the autocast of the trial's precision.

        Args:
            batch: A micro-batch of `train_batches`, moved to the device, with fp64 converted to fp32.
        """

    @abstractmethod
    def evaluate(self) -> Mapping[str, float | tuple[float, float]]:
        """Return metrics by name: a float that holds for all ranks, or (mean, weight) of this rank.

        The training loop calls this method in evaluation mode, without autograd, in fp32, and with averaged weights if
        `ema_decay` is set. Use `with self.autocast():` for the trial's precision.
        """

    def pictures(self) -> "Mapping[str, NDArray[np.uint8]]":
        """Return RGB images by name, uint8 of shape (height, width, 3), to be logged to the trial's MLflow run.

        Names consist of letters, digits, - and _. The training loop calls this method after an `evaluate` with a new
        best objective, under the same conditions, and only on rank 0: it must not wait for other ranks.
        """
        return {}

    def update(self, window: Sequence[Any]) -> None:
        """Train on one window. By default, call each updater once with `loss`. Override it for other schemes.

        Args:
            window: This rank's micro-batches of the window, at most `config.accumulation`.
        """
        for updater in self.updaters.values():
            updater.update(window, self.loss)

    def after_update(self, report: "UpdateReport") -> None:
        """Handle the report of an update. By default, do nothing."""

    def predict(self, inputs: Any) -> Any:
        """Return the prediction of the trained task for `inputs`: a tensor, an array, or a dict of them.

        The model in MLflow calls this method under the conditions of `evaluate`. By default, apply the only module to
        the inputs in the trial's precision.

        Args:
            inputs: A tensor on the device, or a dict of them. Text comes as arrays.

        Raises:
            ValueError: The task has several modules and does not override this method.
        """
        if len(self.modules) != 1:
            raise ValueError(
                f"{type(self).__name__} must define predict(self, inputs), since it has {len(self.modules)} modules, "
                f"{', '.join(self.modules)}. Return their common prediction."
            )
        (module,) = self.modules.values()
        with self.autocast():
            return module(inputs)

    def example(self) -> Any:
        """Return a few inputs of `predict`, from which MLflow infers the model's signature.

        By default, return eight rows of the first micro-batch, or of its first element if it is a tuple or list.

        Raises:
            ValueError: The first micro-batch cannot be sliced.
        """
        batch: Any = next(iter(self.train_batches(0)), None)
        inputs = batch[0] if isinstance(batch, tuple | list) else batch
        try:
            return {name: part[:8] for name, part in inputs.items()} if isinstance(inputs, dict) else inputs[:8]
        except TypeError as error:
            raise ValueError(
                f"{type(self).__name__} must define example(self), since its micro-batches begin with "
                f"{type(inputs).__name__}. Return a few inputs of predict."
            ) from error

    def state_dict(self) -> dict[str, Any]:
        """Return state in addition to modules, optimizers and schedules. It must be the same on all ranks."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned. The training loop calls it after `build`."""

    def dataset(
        self, name: str, data: Any = None, *, digest: str = "", source: str = "", use: Use = "training"
    ) -> None:
        """Record in `build` a data set that the trial uses. MLflow logs it, and a resumed search reports other data.

        Args:
            name: The name of the data set in MLflow.
            data: The data, hashed by `searchlight.trainables.task.digest_of` on rank 0 in each trial. One GB takes
                seconds: cache the digest of large data with `self.context.cache`.
            digest: The digest, instead of `data`.
            source: Where the data comes from: a URL, a path, or a package and its version.
            use: "training" or "evaluation". Record data that serves both twice.

        Raises:
            ValueError: Both or neither of `data` and `digest` are given, or another argument is wrong.
        """
        if (data is None) == (not digest):
            raise ValueError(f"dataset must get data or a digest, but got {'neither' if data is None else 'both'}.")
        if self.context.rank == 0:
            self.named_data.append(DataSet(name, digest or digest_of(data), source, use))

    def log(self, name: str, value: "Tensor | float", weight: "Tensor | float" = 1.0) -> None:
        """Log a term of the loss. Its weighted mean over the epoch and all ranks is reported as `train/<name>`.

        Terms of a window that is not applied are discarded, as is its loss.

        Args:
            name: The name of the term.
            value: The mean of the term over a micro-batch.
            weight: The number of elements in that mean.

        Raises:
            ValueError: The training loop already reports a metric of this name.
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
        """Add the terms logged since the last update to the sums of the epoch.

        The training loop calls it. A custom `update` calls it before terms of the next update are logged.
        """
        for name, (part, weight) in self.noting.items():
            total, weights = self.noted.get(name, (0.0, 0.0))
            self.noted[name] = (total + part, weights + weight)
        self.noting.clear()

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast context of the trial's precision, for `evaluate` and what acts in `train_batches`."""
        return autocast(self.precision, self.context.device)

    @functools.cached_property
    def precision(self) -> Precision:
        """The precision of this trial. "auto" is resolved for the devices of all ranks, from `build` on."""
        return resolve(self.config.precision, self.context.device)
