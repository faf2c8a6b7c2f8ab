"""A trial in memory that is watched while it trains its first windows, through the code that trials run."""

import copy
import dataclasses
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from searchlight.trainables.context import Context
from searchlight.trainables.preflight.findings import Finding
from searchlight.trainables.task import Task, TaskConfig
from searchlight.trainables.training.trainer import TrialTrainer
from searchlight.trainables.update import Updater, UpdateReport
from searchlight.trainables.update.parameters import get_named_parameters, get_parameters

Window = Sequence[Any]  # of micro-batches
Norms = Mapping[str, float]  # by parameter
Phase = Literal["build", "train", "evaluate", "done"]
FOLDER = str(Path(__file__).parent)
FIRST_WINDOWS = 2  # in which what costs much is watched, such as each forward pass
# Limits that would end an audit before its end.
UNLIMITED = {"gradient_check": "skip", "max_loss_rise": None, "max_consecutive_skips": 10**6}


@dataclass
class UpdateRecord:
    """The calls of one updater.

    Attributes:
        outcomes: The number of windows by their outcome.
        batches: Micro-batches of the first windows, each with the loss that it is for.
        reasons: The reasons of the outcomes.
    """

    calls: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    losses: list[float] = field(default_factory=list)
    batches: list[tuple[Any, Callable[[Any], Any]]] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)


class Check:
    """A check of a task: hooks that see a trial train, and a judgment of what they saw.

    A file of `checks` has those about one subject, and the kinds of their findings. `Audit` in `audit.py` makes all of
    them. The hooks of this class do nothing.
    """

    def on_build(self, trial: "ObservedTrial") -> None:
        """See the trial before its first window."""

    def on_window(self, trial: "ObservedTrial") -> None:
        """See the trial before each window."""

    def watch_loss(self, trial: "ObservedTrial", update: str, batch: Any) -> AbstractContextManager[object]:
        """Return a context in which the loss of `batch` is computed for `update`."""
        return nullcontext()

    def on_loss(self, trial: "ObservedTrial", update: str, returned: Any) -> None:
        """See what the loss of a micro-batch returned, before its backward pass."""

    def on_update(self, trial: "ObservedTrial", update: str, window: Window, norms: Norms) -> None:
        """Look at the norm of each parameter's gradient. Called after `update` has trained on `window`."""

    def on_step(self, trial: "ObservedTrial", optimizer: str, is_of_updater: bool) -> None:
        """See a step of `optimizer`, which its updater or the task itself made."""

    def find(self, trial: "ObservedTrial") -> Iterable[Finding]:
        """Return the findings after the last window. The task may have ended with an error."""
        return ()

    def close(self) -> None:
        """Remove all hooks."""


class ObservedTrial:
    """One trial of a task, built and trained as a worker does, which calls the hooks of `checks`.

    Nothing is raised: `error` is what the task raised, and `phase` is where.

    Args:
        config: The config of the trial, which trains in fp32.
    """

    def __init__(
        self, task_class: type[Task[Any]], config: TaskConfig, context: Context, checks: Sequence[Check] = ()
    ) -> None:
        changes: dict[str, Any] = {**UNLIMITED, "precision": "fp32"}
        changes["accumulation"] = max(2, config.accumulation)  # a window of one micro-batch hides what goes wrong
        self.gradient_check = config.gradient_check
        self.task = task_class(config.model_copy(update=changes), context.for_next_trial())
        self.checks = checks
        self.trainer: TrialTrainer | None = None
        self.error: BaseException | None = None
        self.stack = ""
        self.phase: Phase = "build"
        self.windows = 0
        self.is_empty = False  # an epoch had no window
        self.updates: dict[str, UpdateRecord] = {}
        self.initial: dict[int, Tensor] = {}  # parameters after build, by the id of the trained one
        self.initial_state: dict[str, Any] = {}  # of the task itself
        self.named: dict[str, nn.Parameter] = {}  # of all modules after build
        self.evaluate_s = 0.0
        self._inside: str | None = None  # the update that is computed outside of its loss
        self._handles: list[Any] = []
        with self._recording():
            self.trainer = TrialTrainer(self.task)
        if self.trainer is not None:
            self._prepare()

    def _prepare(self) -> None:
        task = self.task
        self.named = get_named_parameters(task.modules)
        self.phase = "train"  # in which an error of `state_dict` would be raised in a trial
        with self._recording():
            self.initial_state = copy.deepcopy(task.state_dict())
        self.initial = {
            id(p): p.detach().clone() for o in task.optimizers.values() for p in get_parameters(o) if not is_lazy(p)
        }
        for name, updater in task.updaters.items():
            self.updates[name] = UpdateRecord()
            self._watch_updater(name, updater)
        for key, optimizer in task.optimizers.items():
            self._handles.append(optimizer.register_step_post_hook(partial(self._see_step, key)))
        for check in self.checks:
            check.on_build(self)
        update = task.update

        def count_window(window: Any) -> None:
            for check in self.checks:
                check.on_window(self)
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

        def toggle_evaluation() -> None:
            self.phase = "evaluate" if self.phase == "train" else "train"

        trainer.on_progress = toggle_evaluation
        while not stopping() and self.error is None:
            before, self.phase = (trainer.epoch, self.windows), "train"
            with self._recording():
                trainer.run_epoch(stopping)
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
        with self._recording():
            found = self.trainer.evaluate()
        self.evaluate_s = time.perf_counter() - start - (cache.seconds - cached)  # as later ones take
        if self.error is None:
            self.phase = "done"
        return found

    def close(self) -> None:
        """Release the resources of the trial."""
        for check in self.checks:
            check.close()
        for handle in self._handles:
            handle.remove()
        if self.trainer is not None:
            self.trainer.close()

    @contextmanager
    def _recording(self) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:  # whatever a task raises is what the audit is to tell
            self.error, self.stack = error, traceback.format_exc()

    def _see_step(self, key: str, *_: Any) -> None:
        is_of_updater = self._inside is not None and key in self.task.updates[self._inside]
        for check in self.checks:
            check.on_step(self, key, is_of_updater)

    def _watch_updater(self, name: str, updater: Updater) -> None:
        record, original = self.updates[name], updater.update

        def update(window: Any, loss: Callable[[Any], Any]) -> UpdateReport:
            record.calls += 1
            if len(record.batches) < 4:
                record.batches += [(batch, loss) for batch in list(window)[:2]]

            def watched(batch: Any) -> Any:
                self._inside = None  # a step in a loss is not the updater's
                try:
                    with ExitStack() as contexts:
                        for check in self.checks:
                            contexts.enter_context(check.watch_loss(self, name, batch))
                        returned = loss(batch)
                    for check in self.checks:
                        check.on_loss(self, name, returned)
                    return returned
                finally:
                    self._inside = name

            self._inside = name
            try:
                report = original(window, watched)
            finally:
                self._inside = None
            record.outcomes[report.outcome] += 1
            record.losses.append(report.loss)
            record.reasons.add(report.reason)
            norms = updater.gradient_norms()
            for check in self.checks:
                check.on_update(self, name, window, norms)
            return report

        updater.update = update  # type: ignore[method-assign]


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


def find_running_line() -> str:
    """Return the line outside of torch and the audit that is running, such as "my_task.py, line 7, in loss"."""
    frames = [
        frame
        for frame in traceback.extract_stack()
        if "-packages/" not in frame.filename and not frame.filename.startswith(FOLDER)
    ]
    return f"{frames[-1].filename.rpartition('/')[2]}, line {frames[-1].lineno}, in {frames[-1].name}" if frames else ""
