"""A trial in memory that is watched while it trains its first windows, through the code that trials run."""

import copy
import dataclasses
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from searchlight.trainables.context import Context
from searchlight.trainables.preflight.samples import digest_samples
from searchlight.trainables.task import Task, TaskConfig
from searchlight.trainables.training.trainer import TrialTrainer
from searchlight.trainables.update import Updater, UpdateReport
from searchlight.trainables.update.parameters import get_named_parameters, get_parameters

Phase = Literal["build", "train", "evaluate", "done"]
HOOKED_WINDOWS = 2  # in which it is watched where a gradient gets lost
ADDITIONS = {"add", "sub", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "add_", "sub_", "rsub"}
COMPARISONS = {"sub", "rsub", "__sub__", "__rsub__", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}
# Limits that would end an audit before its end.
UNLIMITED = {"gradient_check": "skip", "max_loss_rise": None, "max_consecutive_skips": 10**6}


@dataclass
class GradientRecord:
    """The gradients of one parameter: in how many windows it had one, their largest norm, how many were not finite."""

    seen: int = 0
    largest: float = 0.0
    non_finite: int = 0


@dataclass
class ForwardRecord:
    """The calls of one module: how many had an output that requires a gradient, and whether a gradient arrived."""

    calls: int = 0
    differentiable: int = 0
    arrived: bool = False


@dataclass
class UpdateRecord:
    """The outcomes of the windows of one update."""

    outcomes: dict[str, int] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    calls: int = 0  # of the updater
    repeated: int = 0  # calls with a window that it had had
    batches: list[tuple[Any, Callable[[Any], Any]]] = field(default_factory=list)  # with the loss that they are for
    reasons: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Term:
    """A term without a gradient that was added to a loss with one: its line, and its value."""

    line: str
    value: float


class TermRecorder(TorchFunctionMode):
    """Records scalar terms without a gradient that are added to terms with one, and targets that broadcast.

    Attributes:
        broadcasts: The shapes of a prediction (n, 1) and targets (n,), or the reverse, by the line that compares them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.terms: list[Term] = []
        self.broadcasts: dict[str, str] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        parts = args[0] if name == "stack" and args and isinstance(args[0], list | tuple) else args
        if (name in ADDITIONS or name == "stack") and isinstance(result, Tensor) and result.requires_grad:
            tensors = [part for part in parts if isinstance(part, Tensor)]
            if len(tensors) > 1 and all(part.numel() == 1 for part in tensors):
                for part in tensors:
                    if not part.requires_grad:
                        self.terms.append(Term(_find_line(), float(part.detach())))
        if name in COMPARISONS and len(args) > 1 and _compares_each_with_all(args[0], args[1]):
            count = max(args[0].shape)
            figure = f"{tuple(args[0].shape)} with {tuple(args[1].shape)} gives {(count, count)}"
            self.broadcasts.setdefault(_find_line(), figure)
        return result


class ObservedTrial:
    """One trial of a task, built and trained as a worker does, with a record of what passes through it.

    Nothing is raised: `error` is what the task raised, and `phase` is where.

    Args:
        config: The config of the trial, in fp32 unless `keep_precision` is set.
    """

    def __init__(
        self, task_class: type[Task[Any]], config: TaskConfig, context: Context, keep_precision: bool = False
    ) -> None:
        changes: dict[str, Any] = {**UNLIMITED, **({} if keep_precision else {"precision": "fp32"})}
        changes["accumulation"] = max(2, config.accumulation)  # a window of one micro-batch hides what goes wrong
        self.gradient_check = config.gradient_check
        self.task = task_class(config.model_copy(update=changes), context.for_next_trial())
        self.trainer: TrialTrainer | None = None
        self.error: BaseException | None = None
        self.stack = ""
        self.phase: Phase = "build"
        self.windows = 0
        self.is_empty = False  # an epoch had no window
        self.metrics: dict[str, float] = {}
        self.gradients: dict[str, GradientRecord] = {}
        self.forwards: dict[str, ForwardRecord] = {}
        self.updates: dict[str, UpdateRecord] = {}
        self.terms: list[Term] = []
        self.steps_outside: dict[str, int] = {}
        self.backward_in_loss: set[str] = set()
        self.dropped_in_loss: set[str] = set()
        self.rates_in_loss: dict[str, str] = {}  # learning rates before and after a loss that changed them
        self.broadcasts: dict[str, str] = {}
        self.overwritten: set[str] = set()  # digests of samples that the loss changed in its micro-batch
        self.initial: dict[int, Tensor] = {}
        self.initial_state: dict[str, Any] = {}  # of the task itself
        self.named: dict[str, nn.Parameter] = {}
        self.seconds = {"build": 0.0, "train": 0.0, "evaluate": 0.0}
        self._inside: str | None = None
        self._handles: list[Any] = []
        with self._recording("build"):
            self.trainer = TrialTrainer(self.task)
        if self.trainer is not None:
            self._prepare()

    def _prepare(self) -> None:
        task = self.task
        self.named = get_named_parameters(task.modules)
        self.initial_state = copy.deepcopy(task.state_dict())
        self.initial = {
            id(p): p.detach().clone() for o in task.optimizers.values() for p in get_parameters(o) if not is_lazy(p)
        }
        self.gradients = {name: GradientRecord() for u in task.updaters.values() for name in u.trainable_names()}
        for name, updater in task.updaters.items():
            self.updates[name] = UpdateRecord()
            self._watch_updater(name, updater)
        for key, optimizer in task.optimizers.items():
            self.steps_outside[key] = 0
            self._handles.append(optimizer.register_step_post_hook(self._make_step_hook(key)))
        for key, module in task.modules.items():
            self._watch_forward(key, module)
        update = task.update

        def count_window(window: Any) -> None:
            if self.windows == HOOKED_WINDOWS:
                self._unhook_forward()
            update(window)
            self.windows += 1

        task.update = count_window  # type: ignore[method-assign]

    def train(self, windows: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Train on further windows, across the ends of epochs. Return whether the task raised no error."""
        trainer, target = self.trainer, self.windows + windows
        if trainer is None or self.error is not None:
            return False

        def stopping() -> bool:
            return self.windows >= target or until()

        trainer.on_progress = self._toggle_evaluation
        while not stopping() and self.error is None:
            before, self.phase, start = (trainer.epoch, self.windows), "train", time.perf_counter()
            with self._recording("train"):
                metrics = trainer.run_epoch(stopping)
                self.metrics = metrics or self.metrics
            self.seconds["train"] += time.perf_counter() - start
            if (trainer.epoch, self.windows) == (before[0] + 1, before[1]):
                self.is_empty = True
                break
        self.phase = "done" if self.error is None else self.phase
        return self.error is None

    def evaluate(self) -> dict[str, float] | None:
        """Return the metrics of the trial with its present weights, or None if `evaluate` raised an error."""
        if self.trainer is None or (self.error is not None and self.phase != "done"):
            return None
        found: dict[str, float] | None = None
        cache = self.task.context.cache_store
        start, cached, self.phase = time.perf_counter(), cache.seconds, "evaluate"
        self.trainer.on_progress = lambda: None
        with self._recording("evaluate"):
            found = self.trainer.evaluate()
        self.seconds["evaluate"] = time.perf_counter() - start - (cache.seconds - cached)  # as later ones take
        if self.error is None:
            self.phase = "done"
        return found

    def close(self) -> None:
        """Release the resources of the trial."""
        self._unhook_forward()
        for handle in self._handles:
            handle.remove()
        if self.trainer is not None:
            self.trainer.close()

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters that require a gradient, by name."""
        return {name: p for name, p in get_named_parameters(self.task.modules).items() if p.requires_grad}

    def _toggle_evaluation(self) -> None:
        self.phase = "evaluate" if self.phase == "train" else "train"

    @contextmanager
    def _recording(self, phase: Phase) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        except (Exception, SystemExit) as error:  # whatever a task raises is what the audit is to tell
            self.error, self.stack = error, traceback.format_exc()
        if phase == "build":
            self.seconds["build"] += time.perf_counter() - start

    def _make_step_hook(self, key: str) -> Callable[..., None]:
        def count_step(*_: Any) -> None:
            if self._inside is None or key not in self.task.updates[self._inside]:
                self.steps_outside[key] += 1

        return count_step

    def _watch_updater(self, name: str, updater: Updater) -> None:
        record, original = self.updates[name], updater.update
        seen: set[tuple[int, ...]] = set()

        def update(window: Any, loss: Callable[[Any], Any]) -> UpdateReport:
            record.calls += 1
            identity = (self.windows, *(id(batch) for batch in window))
            record.repeated += identity in seen
            seen.add(identity)
            if len(record.batches) < 4:
                record.batches += [(batch, loss) for batch in list(window)[:2]]

            def watched(batch: Any) -> Any:
                self._inside = None  # a step in a loss is not the updater's
                try:
                    return self._watch_loss(name, updater, loss, batch)
                finally:
                    self._inside = name

            self._inside = name
            try:
                report = original(window, watched)
            finally:
                self._inside = None
            self._record_report(record, updater, report)
            return report

        updater.update = update  # type: ignore[method-assign]

    def _record_report(self, record: UpdateRecord, updater: Updater, report: UpdateReport) -> None:
        record.outcomes[report.outcome] = record.outcomes.get(report.outcome, 0) + 1
        record.losses.append(report.loss)
        record.reasons.add(report.reason)
        for name, norm in updater.gradient_norms().items():
            own = self.gradients.setdefault(name, GradientRecord())
            own.seen += 1
            finite = norm == norm and norm != float("inf")
            own.non_finite += not finite
            own.largest = max(own.largest, norm if finite else 0.0)

    def _watch_loss(self, name: str, updater: Updater, loss: Callable[[Any], Any], batch: Any) -> Any:
        parameters = [p for o in updater.optimizers.values() for p in get_parameters(o)]
        before = [p.grad for p in parameters]
        copies = [None if g is None or g.is_sparse else g.detach().clone() for g in before if self.windows == 0]
        rates = _get_rates(updater)
        if self.windows < HOOKED_WINDOWS:
            recorder, samples = TermRecorder(), digest_samples(batch)
            with recorder:
                returned = loss(batch)
            self.terms += [term for term in recorder.terms if term.line not in {known.line for known in self.terms}]
            self.broadcasts |= recorder.broadcasts
            self.overwritten |= {*samples} - {*digest_samples(batch)}
        else:
            returned = loss(batch)
        for rate, changed in zip(rates, _get_rates(updater), strict=False):
            if rate != changed:
                self.rates_in_loss.setdefault(name, f"learning rate {rate:.3g} before it, {changed:.3g} after it")
        for old, p in zip(before, parameters, strict=True):
            if old is None and p.grad is not None:
                self.backward_in_loss.add(name)
            elif old is not None and p.grad is None:
                self.dropped_in_loss.add(name)
        for saved, p in zip(copies, parameters, strict=False):
            if saved is None or p.grad is None:
                continue
            if not torch.equal(saved.nan_to_num(), p.grad.nan_to_num()):
                (self.backward_in_loss if p.grad.any() else self.dropped_in_loss).add(name)
        return returned

    def _watch_forward(self, key: str, module: nn.Module) -> None:
        for path, part in module.named_modules():
            if not any(p.requires_grad for p in part.parameters(recurse=False)):
                continue
            record = self.forwards.setdefault(f"{key}.{path}".rstrip("."), ForwardRecord())

            def hook(_: nn.Module, args: Any, result: Any, record: ForwardRecord = record) -> None:
                record.calls += 1
                outputs = [tensor for tensor in find_tensors(result) if tensor.requires_grad]
                record.differentiable += bool(outputs)
                for tensor in outputs:
                    tensor.register_hook(partial(_note_arrival, record))  # type: ignore[no-untyped-call]

            self._handles.append(part.register_forward_hook(hook))

    def _unhook_forward(self) -> None:
        kept = len(self.task.optimizers)
        for handle in self._handles[kept:]:
            handle.remove()
        del self._handles[kept:]


def _note_arrival(record: ForwardRecord, gradient: Tensor) -> None:
    record.arrived = True


def _get_rates(updater: Updater) -> list[float]:
    return [float(group.get("lr", 0.0)) for o in updater.optimizers.values() for group in o.param_groups]


def _compares_each_with_all(first: Any, second: Any) -> bool:
    """Return whether predictions and targets have the shapes (n, 1) and (n,), so that their difference is (n, n)."""
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)) or first.requires_grad == second.requires_grad:
        return False  # two predictions are compared with each other on purpose
    row, column = sorted((first, second), key=lambda tensor: tensor.ndim)
    return row.ndim == 1 and len(row) > 1 and column.shape == (len(row), 1)


def find_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested tuples, lists, dicts and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from find_tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from find_tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from find_tensors([getattr(value, part.name) for part in dataclasses.fields(value)])


def count_values(tensors: Iterable[Tensor]) -> int:
    """Return the number of elements of all `tensors`."""
    return sum(tensor.numel() for tensor in tensors)


def _find_line() -> str:
    """Return the line outside of torch that is running, such as "my_task.py, line 7, in loss"."""
    frames = [f for f in traceback.extract_stack() if "-packages/" not in f.filename and f.filename != __file__]
    return f"{frames[-1].filename.rpartition('/')[2]}, line {frames[-1].lineno}, in {frames[-1].name}" if frames else ""
