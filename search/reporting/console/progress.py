"""Shows a running search: its state in a terminal, or a line for each event elsewhere."""

import importlib.util
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from searchlight.search.analysis.best_trials import BestReports
from searchlight.search.analysis.confirmation import describe_config
from searchlight.search.execution.callback import TrialCallback
from searchlight.search.formatting import format_duration, format_value
from searchlight.search.reporting.console.tables import build_table, list_omitted_columns
from searchlight.search.space.fidelity import UNLIMITED, format_amount, unit_label
from searchlight.search.space.objectives import Objective
from searchlight.search.space.search_space import Space
from searchlight.search.study.changes import UNSEEN, SeenTrial, find_changes
from searchlight.search.study.trial import OUTCOMES, WORSE, get_confirming_run, measure_violation
from searchlight.trainables.flatten import flatten

if TYPE_CHECKING:
    from searchlight.search.execution.searcher import StudySearcher

STYLES = {
    "completed": "green",
    "pruned": "",
    "diverged": "yellow",
    "infeasible": "yellow",
    "failed": "red",
    "interrupted": "dim",
}
SPEED = "time/samples_per_s"
WARNINGS = 5  # that are kept for who looks at the search later


@dataclass
class LiveRow:
    """The state of a running trial."""

    values: Mapping[str, Any]  # of its active searched parameters
    epochs: int | None  # of a complete trial; None if unknown
    epoch: int = 0
    now: float = math.nan  # its last objective
    best: float = math.nan
    speed: float = 0.0  # samples per second in its last epoch


@dataclass
class LiveTable:
    """A renderable of rich: a summary of the search, and as many trials as fit."""

    objective: Objective
    trials: int  # the number of trials to start
    expected: float | None  # the budget of all trials in the scheduler's unit; None if unknown
    budget_s: float | None = None  # the time limit of the search
    spent: Callable[[], float] = field(init=False)  # the used budget; default: an epoch per report
    live: Callable[[], Collection[int]] = field(init=False)  # the trials in training; default: all in `rows`
    gpu_time_left: Callable[[], float | None] = lambda: None  # seconds until the GPU-hours are used up, if limited
    rows: dict[int, LiveRow] = field(default_factory=dict)  # by trial number
    ended: Counter[str] = field(default_factory=Counter)  # by outcome
    failure: str = ""  # of the last failed trial
    confirming_runs: int | None = 0  # the expected number; None if unknown
    confirming: set[int] = field(default_factory=set)  # trial numbers of confirming runs
    confirmed: int = 0  # ended confirming runs
    epochs: int = 0
    unit: str = "epochs"  # of `expected` and `spent`
    hours: str = "GPU-hours"  # that `gpu_time_left` is about
    bests: BestReports = field(init=False)

    def __post_init__(self) -> None:
        self.bests = BestReports([self.objective])
        self.spent = lambda: self.epochs
        self.live = lambda: self.rows
        self._began = time.monotonic()
        self._first: tuple[float, float] | None = None  # time and used budget at the first report

    def add_trial(self, number: int, values: Mapping[str, Any], epochs: int | None, confirms: bool = False) -> None:
        self.rows[number] = LiveRow(values, epochs)
        if confirms:
            self.confirming.add(number)

    def record_report(
        self, number: int, epoch: int, metrics: Mapping[str, float], is_earlier: bool = False, violation: float = 0.0
    ) -> None:
        """Add a report, which `is_earlier` if it was made before the search was resumed: it took no time since."""
        self.epochs += 1
        value = metrics[self.objective.metric]
        if number not in self.confirming:
            self.bests.record_report(number, epoch, metrics, violation=violation)
        if (row := self.rows.get(number)) is not None:
            row.epoch, row.now = epoch, value
            row.best = value if math.isnan(row.best) or self.objective.is_better(value, row.best) else row.best
            row.speed = 0.0 if is_earlier else metrics.get(SPEED, 0.0)
        if not is_earlier:
            self._first = self._first or (time.monotonic(), self.spent())

    def end_trial(self, number: int, outcome: str, reason: str) -> LiveRow | None:
        if number in self.confirming:
            self.confirmed += outcome != "interrupted"
            return self.rows.pop(number, None)
        self.ended[outcome] += 1
        if outcome in (*WORSE, "failed"):
            self.bests.discard(number)
        if outcome == "failed":
            self.failure = f"trial {number}: {reason}"
        return self.rows.pop(number, None)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = dict(self.rows)  # copied, since another thread changes it
        live = set(self.live())
        trained = sorted(number for number in rows if number in live)
        yield from self._render_summary(len(trained), len(rows) - len(trained), sum(rows[n].speed for n in trained))
        room = options.size.height - 8  # lines of the summary, the head, the omissions, and the cursor
        if trained and room > 0:
            cells = self._build_rows({number: rows[number] for number in trained[:room]})
            table = build_table(cells, options.max_width)
            yield table
            omitted = list_omitted_columns(table, cells)
            parts = [f"and {len(trained) - room} more"] if len(trained) > room else []
            parts += [f"not shown: {', '.join(omitted)}"] if omitted else []
            if parts:
                yield _build_line(parts, "dim")

    def _render_summary(self, trained: int, waiting: int, speed: float) -> Iterable[Text]:
        ended = sum(self.ended.values())
        parts = [f"{ended} of {self.trials} trials done", f"{trained} running"]
        parts += [f"{waiting} waiting"] if waiting else []
        if self.confirming:
            of_all = f" of {self.confirming_runs}" if self.confirming_runs else ""
            parts.append(f"{self.confirmed}{of_all} confirming runs done")
        yield _build_line(parts, "bold")
        counts = [(outcome, self.ended[outcome]) for outcome in OUTCOMES if self.ended[outcome]]
        if counts:
            yield Text(", ").join(Text(f"{count} {outcome}", STYLES[outcome]) for outcome, count in counts)
        if self.failure:
            yield _build_line([self.failure], STYLES["failed"])
        if (best := self.bests.find_incumbent()) is not None:
            number, report = best
            value = format_value(report.point[self.objective.metric])
            yield _build_line([f"best {self.objective.metric} {value}", f"trial {number}", f"epoch {report.epoch}"])
        elapsed = time.monotonic() - self._began
        end = self.estimate_end()
        times = [f"{format_duration(elapsed)} elapsed", *([f"about {format_duration(end[0])} left"] if end else [])]
        yield _build_line([*times, f"{speed:,.0f} samples/s"] if speed else times)

    def estimate_end(self) -> tuple[float, str] | None:
        """Return in how many seconds the search ends, and what this is computed from. None: nothing supports it."""
        if sum(self.ended.values()) >= self.trials and self.confirmed >= (self.confirming_runs or 0):
            return None
        spent, now = self.spent(), time.monotonic()
        ends = [] if self.budget_s is None else [(self.budget_s - (now - self._began), "its time limit")]
        if (gpu_time := self.gpu_time_left()) is not None:
            ends.append((gpu_time, f"the {self.hours} left, with as many trials at a time as now"))
        if self.expected is not None and self._first is not None and spent > self._first[1]:
            took, since = now - self._first[0], spent - self._first[1]
            amounts = f"{format_amount(since)} {self.unit} took {format_duration(took)}"
            basis = f"the pace so far: {amounts}, and {format_amount(max(0.0, self.expected - spent))} are left"
            ends.append(((self.expected - spent) * took / since, basis))
        soonest = min(ends, default=None)
        return soonest if soonest is None or soonest[0] > 0 else None  # what is overdue supports no estimate

    def _build_rows(self, rows: Mapping[int, LiveRow]) -> list[list[str]]:
        names = list(dict.fromkeys(name for row in rows.values() for name in row.values))
        table = [["trial", "epoch", self.objective.metric, "best", *names]]
        for number, row in rows.items():
            epoch = f"{row.epoch}/{row.epochs}" if row.epochs else str(row.epoch)
            reached = ["" if math.isnan(value) else format_value(value) for value in (row.now, row.best)]
            table.append([str(number), epoch, *reached, *(format_value(row.values.get(name, "")) for name in names)])
        return table


def _build_line(parts: Sequence[str], style: str = "") -> Text:
    return Text(", ".join(parts), style, no_wrap=True, overflow="ellipsis")


class Progress(TrialCallback):
    """Observes a search and shows it on `console`. If `quiet`, it shows only warnings and failures.

    `earlier` are the trials of a resumed search, which were shown before.

    Attributes:
        warnings: The last lines that were shown as warnings, each with its time in seconds since 1970.
        estimate_end: See LiveTable.
    """

    def __init__(
        self, board: LiveTable, space: Space, console: Console, earlier: Sequence[FrozenTrial] = (), quiet: bool = False
    ) -> None:
        self._board, self._space, self._console, self._quiet = board, space, console, quiet
        self._live = None
        # Rich needs ipywidgets to update a table in a notebook.
        self._count_confirming: Callable[[], None] = lambda: None
        self._follow_budget: Callable[[], None] = lambda: None
        has_widgets = console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
        if (console.is_interactive or has_widgets) and not quiet:
            # Each refresh takes up to 10 ms from the search.
            self._live = Live(board, console=console, refresh_per_second=1, transient=True)
        self._seen: dict[int, SeenTrial] = {}
        self.warnings: deque[tuple[float, str]] = deque(maxlen=WARNINGS)
        self.estimate_end = board.estimate_end
        for trial in earlier:
            self._update(trial, is_earlier=True)

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._live:
            with suppress(OSError):  # the terminal was closed
                self._live.stop()

    def follow(self, searcher: "StudySearcher") -> None:
        """Show the used budget and the running trials of `searcher` from now on."""
        board, stoppers = self._board, searcher.limits.stoppers
        board.spent = lambda: searcher.reports.spent
        board.live = lambda: searcher.study.live
        board.gpu_time_left = lambda: stoppers.estimate_time_left(len(searcher.study.live))
        board.unit, board.hours = unit_label(searcher.schedule.unit), stoppers.hours
        expect = searcher.schedule.expected_cost
        to_confirm = 0.0 if board.expected is None else board.expected - expect(board.trials)

        def follow_budget() -> None:
            if board.trials != searcher.limits.trials:  # a command has changed it
                board.trials = searcher.limits.trials
                board.expected = None if board.expected is None else expect(board.trials) + to_confirm

        self._follow_budget = follow_budget

        def count() -> None:
            if searcher.confirmation is not None and self._board.confirming:
                self._board.confirming_runs = searcher.confirmation.count_runs(searcher.study.get_trials())

        self._count_confirming = count

    def say(self, text: str) -> None:
        """Show a line, unless the search is quiet."""
        if not self._quiet:
            self._print(Text(text.rstrip()))

    def warn(self, text: str) -> None:
        """Show a line, also if the search is quiet, and keep it for who looks at the search later."""
        self.warnings.append((time.time(), text.rstrip()))
        self._print(Text(text.rstrip()))

    def on_trial_changed(self, trial: FrozenTrial, is_over: bool = False) -> None:
        self._update(trial, is_over)

    def _update(self, trial: FrozenTrial, is_over: bool = False, is_earlier: bool = False) -> None:
        """Add what is new in `trial` to the board, and show it unless it `is_earlier`."""
        number = trial.number
        self._follow_budget()
        changes = find_changes(trial, self._seen.get(number, UNSEEN), is_over)
        self._seen[number] = changes.seen
        has_lines = self._live is None and not is_earlier
        if changes.has_begun:
            parts = self._add_trial(trial)
            if has_lines:
                self.say(f"trial {number:>3}  created   {'  '.join(parts)}")
        for epoch, report in changes.reports:
            self._board.record_report(number, epoch, report["metrics"], is_earlier, measure_violation(report))
            if has_lines:
                metric = self._board.objective.metric
                self.say(f"trial {number:>3}  epoch {epoch:<3} {metric} {format_value(report['metrics'][metric])}")
        if changes.outcome:
            row = self._board.end_trial(number, changes.outcome, changes.reason)
            self._count_confirming()  # a config that diverged gets no more runs
            if self._live is not None and not is_earlier:
                self._print_trial_end(number, changes.outcome, changes.reason, row)
            elif has_lines and (not self._quiet or changes.outcome == "failed"):
                self._print(Text(f"trial {number:>3}  {changes.outcome:<9} {changes.reason}".rstrip()))

    def _add_trial(self, trial: FrozenTrial) -> list[str]:
        """Add a trial to the board. Return its active searched parameters, or what it confirms, as texts."""
        config = flatten(trial.user_attrs["config"])
        chosen = self._space.choose(lambda parameter: config.get(parameter.name))
        values = {name: value for name, value in chosen.items() if name in config}
        epochs, run = config.get("epochs"), get_confirming_run(trial)
        limit = epochs if epochs and epochs < UNLIMITED else None
        self._board.add_trial(trial.number, values, limit, run is not None)
        if run is not None:
            self._count_confirming()
            return [f"confirms {describe_config(run.trial)} with seed {run.seed}"]
        parent = trial.user_attrs.get("copied_from")
        return _format_values(values) + ([] if parent is None else [f"from trial {parent}"])

    def _print_trial_end(self, number: int, outcome: str, reason: str, row: LiveRow | None) -> None:
        """Show the result and values of a trial, in one line unless it failed."""
        parts = [] if row is None or math.isnan(row.best) else [f"{format_value(row.best)} after epoch {row.epoch}"]
        parts += [reason] if outcome in (*WORSE, "failed") else []
        parts += _format_values(row.values) if row else []
        text = Text.assemble(f"trial {number:>3}  ", (f"{outcome:<9}", STYLES[outcome]), " ", "  ".join(parts))
        if outcome != "failed":
            text.truncate(self._console.width, overflow="ellipsis")
        self._print(text)

    def _print(self, text: Text) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)


def _format_values(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={format_value(value)}" for name, value in values.items()]
