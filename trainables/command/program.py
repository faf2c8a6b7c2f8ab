"""The running program of a trial, and the reports that it makes."""

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self

from searchlight.trainables.command.claim import Claim
from searchlight.trainables.command.collector import Measurement, Report, ReportCollector, Seen
from searchlight.trainables.command.fork_server import ForkServer
from searchlight.trainables.command.listener import MetricListener
from searchlight.trainables.command.output import explain_unread
from searchlight.trainables.command.process import open_process, start_process
from searchlight.trainables.command.settings import CommandSettings
from searchlight.trainables.command.template import fill, fill_text, format_value
from searchlight.trainables.command.trial_folder import TrialFolder
from searchlight.trainables.ports import find_free_ports

POLL_S = 0.5  # how often a program without reports looks for the end of its trial
COMPLAINT = "searchlight: "  # begins a line of the hook
ASK = signal.SIGURG  # lets the hook say what a program has imported; programs without it ignore the signal
MOST_NAMED = 12  # metrics in a message


class Program:
    """Runs the program of a trial in its folder, as a context that ends it with all that it has started.

    Args:
        values: The parameters of the trial, by their dotted names.
        environment: The variables of the program, without Searchlight's own.
        on_progress: Is called whenever the program prints or measures something, in any thread.
        server: Forks the program from a process that has its imports, or None.
        claim: If it is lost, the program ends, since another worker continues its trial.

    Attributes:
        code: The exit code, negative for a signal. None while the program runs.
    """

    def __init__(
        self,
        settings: CommandSettings,
        folder: TrialFolder,
        values: Mapping[str, Any],
        environment: Mapping[str, str],
        on_progress: Callable[[], object] = lambda: None,
        server: ForkServer | None = None,
        claim: Claim | None = None,
    ) -> None:
        self.code: int | None = None
        self._settings = settings
        self._folder = folder
        self._values = values
        places: dict[str, Any] = {
            "trial": folder.path.name,
            "trial_dir": folder.path,
            "checkpoint_dir": folder.checkpoints,
        }
        places |= {"nproc": settings.nproc, "port": find_free_ports()[0]}
        places |= {name: values[name] for name in ("seed", "epochs") if values.get(name) is not None}
        self._places = {name: str(value) for name, value in places.items()}
        self._environment = environment
        self._on_progress = on_progress
        self._server = server
        self._claim = claim
        self._stopping = threading.Lock()
        self._reports: queue.SimpleQueue[Report | None] = queue.SimpleQueue()  # None when the program has ended
        self._receiving = threading.Lock()
        self._opened = ExitStack()
        self._has_asked = False
        self._error: OSError | None = None  # of the folder, in another thread

    def __enter__(self) -> Self:
        settings, folder = self._settings, self._folder
        folder.prepare()
        launch = fill(settings, self._values, self._places, self._environment, folder.can_continue)
        folder.write(launch.files)
        values = {name: format_value(value) for name, value in self._values.items()}
        metrics_file = fill_text(settings.metrics_file, {**values, **self._places})
        metrics_file = str(folder.current / metrics_file) if metrics_file else ""
        self._listener = MetricListener(settings, self, metrics_file)
        self._collector = ReportCollector(settings.objectives, settings.every, self._listener.sources)
        self._earlier = folder.read_reports()
        for report in self._earlier:
            self._collector.remember(report)
        with ExitStack() as opened:
            opened.enter_context(self._listener)
            environment = self._listener.build_environment(launch.environment)
            self._launch = replace(launch, environment=environment)
            create = self._server.open_process if self._server else open_process
            places = environment, folder.current, folder.output
            self._process = start_process(launch.argv, *places, self._read_line, settings.stop_grace, create)
            self._opened = opened.pop_all()
        threading.Thread(target=self._wait, daemon=True, name="program-end").start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the program."""
        with self._stopping:
            if self.code is None:
                self._stop()
        if not self.is_superseded:
            self._folder.remove_links()

    @property
    def is_superseded(self) -> bool:
        """Whether another worker continues the trial."""
        return self._claim is not None and self._claim.is_lost

    def _stop(self) -> None:
        try:
            if self._settings.can_resume:
                self._folder.wait_until_quiet()
            if self._listener.can_stop:
                self._listener.ask_to_stop()
                self._process.wait(self._settings.stop_grace)
        finally:  # whatever happens, the program must not go on
            self._process.stop()
            self._end()

    def put(self, measurement: Measurement) -> None:
        """Take a measurement, and keep the reports that it completes, which may be read much later.

        A program that continues after its last checkpoint does not make them again.
        """
        self._on_progress()
        with self._receiving:
            self._keep(self._collector.add(measurement))

    def _keep(self, reports: Iterable[Report]) -> None:
        for report in reports:
            if not report.replaces and self._error is None:  # without a gap: a later start counts them
                try:
                    self._folder.add_reports([report])
                except OSError as error:  # generate_reports() raises it
                    self._error = error
            self._reports.put(report._replace(at=time.perf_counter()))

    def generate_reports(self, is_stopping: Callable[[], bool]) -> Iterator[Report]:
        """Yield each report of the program until it has ended, or until `is_stopping` returns true.

        Raises:
            UnwritableError: Its folder takes no output or report, so that the trial has to continue later.
        """
        while not is_stopping():
            self._check_folder()
            try:
                report = self._reports.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if report is None:
                self._process.close()
                self._end()
                self._check_folder()
                yield from self._take_rest()
                return
            self._prepare_next()
            yield report

    def _check_folder(self) -> None:
        if error := self._error or self._process.output.error:
            raise error

    def describe_failure(self) -> str:
        """Return why the program, which has ended, has failed, or "" if it has not."""
        assert self.code is not None
        last = self.tail.rpartition("\n")[2].strip()
        if self.code < 0:
            name = signal.Signals(-self.code).name
            return f"the program was killed by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")
        if self.code > 0:
            return f"exit code {self.code}: {last}" if last else f"exit code {self.code}"
        if (missing := self._collector.missing) and not self._earlier:
            return f"the program ended without {', '.join(missing)}: {self._describe_seen(missing)}"
        return ""

    @property
    def seen(self) -> Mapping[str, Seen]:
        """All metrics that the program has given, by name."""
        return self._collector.seen

    @property
    def tail(self) -> str:
        """The last lines of the output, with the user's files in the place of links to them."""
        return self._process.output.tail().replace(str(self._folder.path), self._settings.folder)

    def _describe_seen(self, missing: Collection[str]) -> str:
        seen = sorted(self._collector.seen.items())
        named = [f"{name} ({each.times} times, {each.source})" for name, each in seen[:MOST_NAMED]]
        given = f"it gave {', '.join(named)}{' and others' if len(seen) > MOST_NAMED else ''}" if named else ""
        if unread := [text for text in self._settings.metrics if text.partition("=")[0] in missing]:
            output = self._folder.output.read_text(encoding="utf-8", errors="replace")
            return "; ".join(filter(None, [given, *(explain_unread(text, output) for text in unread)]))
        said = [line for line in self.tail.splitlines() if line.startswith(COMPLAINT)]
        if said:  # e.g. that a function returned no number
            return f"{given or 'it gave no metric'}; {said[-1].removeprefix(COMPLAINT).rstrip('.')}"
        return f"{given or 'it gave no metric'}. With --try-first, the same command proposes what to judge it by"

    def _wait(self) -> None:
        while self._process.wait(POLL_S) is None:
            try:
                is_superseded = self.is_superseded
            except OSError as error:  # generate_reports() raises it
                self._error = self._error or error
                continue
            if is_superseded and self._claim is not None:  # its function may wait in a report for long
                with self._stopping:
                    if self.code is None:
                        self._stop()
                self._claim.release()
        self._reports.put(None)

    def _end(self) -> None:
        """Let all that the program has sent reach the queue."""
        self._opened.close()
        with self._receiving:
            self._keep(self._collector.finish())
        self.code = self._process.poll()
        if self.code == 0 or self._has_asked:  # a program that fails early may have imported little
            self._prepare_next()

    def _prepare_next(self) -> None:
        """Import what this program has imported, as far as it has said so, for the ones after it."""
        if self._server is None or not self._server.needs_modules:
            return
        if modules := self._listener.modules.get(self._process.pid):
            variables = self._listener.variables[self._process.pid]
            launch, folder = self._launch, self._folder.current
            self._server.prepare(launch.argv, launch.environment, folder, modules, variables)
        elif not self._has_asked and self.code is None:
            self._has_asked = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, ASK)

    def _take_rest(self) -> Iterator[Report]:
        while not self._reports.empty():
            if (report := self._reports.get()) is not None:
                yield report

    def _read_line(self, line: str) -> None:
        self._on_progress()
        self._listener.read_output(line)
