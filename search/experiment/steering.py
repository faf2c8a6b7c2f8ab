"""Applies commands of users to a running search."""

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from optuna.trial import TrialState

from searchlight.search.errors import UsageError
from searchlight.search.execution.cluster.connection import join_thread
from searchlight.search.execution.cluster.resources import CapacityMonitor
from searchlight.search.execution.searcher import StudySearcher
from searchlight.search.execution.stoppers import HOUR
from searchlight.search.folder.locations import local_path_of
from searchlight.search.formatting import format_location
from searchlight.search.space.initial_points import parse_beliefs, parse_named_point
from searchlight.search.steering.allowed_space import list_regions
from searchlight.search.steering.check import SearchView, check_command
from searchlight.search.steering.command import LOG, Answer, Command, LogEntry
from searchlight.search.steering.driver_state import EVERY_S, DriverState, write_state
from searchlight.search.steering.mailbox import POLL_S, list_answers, read_requests, remove_answer, write_answer
from searchlight.search.steering.state import SteeringState, are_allowed, build_state, describe_author, is_of
from searchlight.search.study.trial import has_checkpoint, split_trials
from searchlight.trainables.filesystem.atomic_file import write_atomic
from searchlight.trainables.filesystem.paths import StoragePath
from searchlight.trainables.task import TaskConfig

READ_S = 1.0  # interval at which the folder of commands is read
KEEP_S = 600.0  # how long an answer lies there for its client; the log has it for good
LAST_S = 2.0  # the same at the end of the search
OPTION = "option-believe"  # the id of the command that --believe stands for
DRIVER = "searchlight"  # the author of the commands that the driver gives itself


class Steering:
    """Reads commands in a thread, applies them where Tune's event loop calls `apply_waiting`, and answers.

    A command is written to the study's log before it has an effect, and its effect is computed from the log. So neither
    a killed driver nor a killed client loses it or applies it twice.

    Args:
        searcher: What commands change. Its `controls` then call this object.
        place: The folder or bucket of the search.
        halt_trial: Lets the workers of a live trial end its segment.
        end_search: Ends the trials at their next rung, with a reason.
        say: Shows a line to the user.
        warn: Shows a warning.
        gangs: Knows how many trials run at a time, of which commands decide.
        free_gangs: Lets workers leave their resources to others, but those of trials with these numbers.
        describe: Returns the state of the driver, which is written for who looks at the search.

    Attributes:
        log: The commands so far with their answers.
    """

    def __init__(
        self,
        searcher: StudySearcher,
        place: StoragePath,
        halt_trial: Callable[[int], object],
        end_search: Callable[[str], None],
        say: Callable[[str], None],
        warn: Callable[[str], None],
        gangs: CapacityMonitor | None = None,
        free_gangs: Callable[[frozenset[int]], object] = lambda live: None,
        describe: Callable[[], DriverState] | None = None,
    ) -> None:
        self._searcher = searcher
        self._study, self._space, self._limits = searcher.study, searcher.space, searcher.limits
        self._controls, self._finish_trial = searcher.controls, searcher.reports.finish_trial
        self._halt_trial, self._end_search, self._confirms = halt_trial, end_search, searcher.confirmation is not None
        self._place, self._folder, self._say, self._warn = place, local_path_of(place), say, warn
        self._gangs, self._free_gangs, self._describe = gangs, free_gangs, describe
        self._is_of_task = issubclass(self._space.config_class, TaskConfig)
        self._extends = self._is_of_task and searcher.schedule.unit == "epochs"
        self._planned = self._limits.trials, self._limits.stoppers.gpu_hours  # without commands
        self.log = self._study.get_commands()
        self._resumed_at = len(self.log)  # budgets before that are options of the resumed search
        self._arrived: SimpleQueue[Command] = SimpleQueue()
        self._answers: SimpleQueue[LogEntry] = SimpleQueue()
        self._halted: set[int] = set()  # live trials that were asked to stop
        self._tried: dict[str, int | None] = {}  # the trial of each point to try, by the id of its command
        self._undescribed = ""  # the error of the last description
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._exchange_files, daemon=True, name="steering")
        self._controls.apply_waiting, self._controls.update_trials = self.apply_waiting, self.update_trials
        self._controls.free_gangs = self._free_idle_gangs
        self._use(build_state(self.log))  # trials follow once the searcher has recovered
        if self._controls.is_paused:
            warn(f"the search is paused until: searchlight continue {format_location(place)}")

    def __enter__(self) -> "Steering":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        join_thread(self._thread)
        if self.log:
            with suppress(OSError):  # the study has the log, and what comes next reports a full disk
                write_atomic(self._folder / LOG, json.dumps([entry.as_json() for entry in self.log], indent=1))

    def receive(self, command: Command) -> None:
        """Let `apply_waiting` apply a command. Another thread may call this."""
        self._arrived.put(command)

    def believe(self, point: Mapping[str, Any]) -> None:
        """Believe in what the options of the search say, unless it has done so before it was resumed."""
        if any(entry.command.id == OPTION for entry in self.log):
            return
        believed = dict[str, list[Any]]()
        for name, told in point.items():
            try:
                believed |= parse_beliefs(self._space, {name: told})
            except UsageError as error:  # the nodes have narrowed the space
                self._warn(f"--believe {' '.join(error.problems)}")
        if believed:
            self._apply(Command("believe", {"point": believed}, id=OPTION))

    def apply_waiting(self) -> None:
        """Apply the commands that have arrived. Call this in the thread that writes to the study."""
        while True:
            try:
                command = self._arrived.get_nowait()
            except Empty:
                break
            self._answers.put(self._apply(command))
        self._stop_over_quota()

    def update_trials(self) -> None:
        """Bring trials and limits into the state that the log describes. Further calls have no effect."""
        if len(self.log) != self._num_used:
            self._use(build_state(self.log))
        state = self._state
        self._halted &= self._study.live
        for number, reason in state.get_reasons("stop").items():
            if self._study.get_trial(number).state == TrialState.RUNNING:
                if number in self._study.live:
                    self._halt(number)
                else:
                    self._finish_trial(number, "pruned", f"stopped {reason}")
        if state.pause is not None and not state.pause.args.get("drain"):
            for number in sorted(self._study.live):
                self._halt(number)
        for command in state.find("try"):  # looked up once each, since there may be thousands of trials
            if command.id not in self._tried:
                self._study.enqueue(command.args["point"])
                own = (trial.number for trial in self._study.get_all_trials() if is_of(trial, command))
                self._tried[command.id] = next(own, None)
        self._controls.kept = self._find_kept()
        self._stop_over_quota()
        for name, belief, why in self._study.find_contradictions():
            if belief in self._study.beliefs.get(name, ()):  # else, the first command has led to one for it already
                self._apply(Command("believe", {"point": {name: [belief.center]}, "drop": True}, DRIVER, why))

    def _free_idle_gangs(self) -> None:
        if self._controls.is_paused or len(self._study.live) >= (self._controls.concurrency or math.inf):
            self._free_gangs(frozenset(self._study.live))

    def _use(self, state: SteeringState) -> None:
        self._state, self._num_used = state, len(self.log)
        self._controls.kept = self._find_kept()
        self._controls.extended = state.get_extensions()
        self._controls.is_paused = state.pause is not None
        self._controls.is_draining = state.pause is not None and bool(state.pause.args.get("drain"))
        self._controls.concurrency = state.get_limit("concurrency")
        trials, gpu_hours = self._planned
        since = build_state(self.log[self._resumed_at :])
        self._limits.trials = since.get_limit("trials") or trials
        self._limits.stoppers.gpu_hours = since.get_limit("gpu_hours") or gpu_hours
        if (runs := since.get_limit("confirm")) and self._searcher.confirmation is not None:
            self._searcher.confirmation = replace(self._searcher.confirmation, runs=runs)
        if self._gangs is not None:
            self._gangs.set_limits(self._limits.trials, self._controls.concurrency)
        regions = list_regions(state, self._space)
        self._study.allows = partial(are_allowed, regions) if regions else None
        # A search may be resumed with a sampler that follows none.
        self._study.beliefs = state.get_beliefs() if self._study.takes_beliefs else {}

    def _find_kept(self) -> frozenset[int]:
        full = (self._tried.get(command.id) for command in self._state.find("try") if command.args.get("full"))
        return frozenset({*self._state.get_reasons("keep"), *(number for number in full if number is not None)})

    def _stop_over_quota(self) -> None:
        """Stop the unfinished trials of authors whose trials have taken their GPU-hours. The log has it."""
        quotas = {each.author: each.gpu_hours for each in self._state.find("try") if each.gpu_hours is not None}
        for author, quota in quotas.items():
            if self._count_gpu_hours(author) >= quota:
                stopped = self._state.get_reasons("stop")
                own = [number for number in self._list_tried(author) if number not in stopped]
                if own := [number for number in own if self._study.get_trial(number).state == TrialState.RUNNING]:
                    why = f"trials of {author} have taken their {quota:g} {self._limits.stoppers.hours}"
                    self._apply(Command("stop", {"trials": own}, DRIVER, why))

    def _list_tried(self, author: str) -> list[int]:
        numbers = (self._tried.get(each.id) for each in self._state.find("try") if each.author == author)
        return [number for number in numbers if number is not None]

    def _count_gpu_hours(self, author: str) -> float:
        return sum(map(self._limits.stoppers.meter.get_gpu_seconds, self._list_tried(author))) / HOUR

    def _resolve(self, command: Command) -> Command:
        """Return a command with the values that its texts stand for: those of a point, or the id of a place in the log.

        A `try` has defaults for the other values.

        Raises:
            UsageError: They are not those of a trial.
        """
        if command.operation == "undo":
            ids = {str(entry.revision): entry.command.id for entry in self.log}
            ids |= {id: id for id in ids.values()}
            named = str(command.args["command"])
            return replace(command, args={"command": ids.get(named, named)})
        if (told := command.args.get("point")) is None:
            return command
        parse = parse_beliefs if command.operation == "believe" else parse_named_point
        return replace(command, args={**command.args, "point": parse(self._space, told)})

    def _apply(self, command: Command) -> LogEntry:
        problem = ""
        try:
            command = self._resolve(command)
        except UsageError as error:
            problem = " ".join(error.problems)
        if (known := next((entry for entry in self.log if entry.command.id == command.id), None)) is not None:
            if known.command.is_same(command):  # its client was killed before it saw the answer
                return known
            problem = f"an id must be new, but {command.id} is that of {known.command.operation}, {known.revision}."
            return LogEntry(len(self.log), command, Answer(False, problem))
        answer = Answer(False, problem) if problem else self._check(command)
        entry = LogEntry(len(self.log) + 1, command, answer, self._study.get_next_number())
        if command.is_preview:
            return LogEntry(len(self.log), command, answer)
        self._study.record_command(entry)
        self._study.commit()
        self.log.append(entry)
        if answer.accepted:
            why = f" ({command.why})" if command.why else ""
            self._say(f"{command.operation} by {command.author}{why}: {answer.effect}")
            self.update_trials()
            self._free_idle_gangs()
            if command.operation == "finish":  # of this driver: a resumed search goes on
                self._end_search(f"finished {describe_author(command)}")
        return entry

    def _check(self, command: Command) -> Answer:
        searched, runs = split_trials(self._study.get_all_trials())
        view = SearchView(
            self._space,
            {trial.number: trial for trial in searched},
            self.log,
            self._limits.trials,
            is_over=self._limits.stopping.is_set() or self._limits.search_over.is_set(),
            room=self._gangs.fit if self._gangs is not None else math.inf,
            resumed_at=self._resumed_at,
            confirms=self._confirms,
            extends=self._extends,
            losing=[number for number in sorted(self._study.live) if self._loses_progress(number)],
            confirming_runs={run.number for run in runs},
            list_tried=self._list_tried,
            count_gpu_hours=self._count_gpu_hours,
            hours=self._limits.stoppers.hours,
            takes_beliefs=self._study.takes_beliefs,
        )
        try:
            return check_command(command, view)
        except UsageError as error:
            return Answer(False, " ".join(error.problems))

    def _loses_progress(self, number: int) -> bool:
        """Return whether a trial would begin again if it stopped. One of a Task saves a checkpoint at any window."""
        return not self._is_of_task and not has_checkpoint(self._study.get_trial(number))

    def _halt(self, number: int) -> None:
        if number not in self._halted:
            self._halted.add(number)
            self._halt_trial(number)

    def _exchange_files(self) -> None:
        """Read commands and write answers until the search is over. No command is passed on twice."""
        passed: set[str] = set()
        written = dict.fromkeys(list_answers(self._place), 0.0)  # to clients of an earlier driver, which have ended
        failed, described_at = "", -EVERY_S
        while True:
            is_last = self._over.wait(READ_S)
            if self._describe and (is_last or time.monotonic() - described_at >= EVERY_S):
                described_at = time.monotonic()
                self._write_state(self._describe)
            try:
                while not self._answers.empty():
                    entry = self._answers.get_nowait()
                    passed.discard(entry.command.id)  # first: if this fails, the command is read and answered again
                    write_answer(self._place, entry)
                    written[entry.command.id] = time.monotonic()
                self._remove_unread(written, LAST_S if is_last else KEEP_S)
                for command in [] if is_last else read_requests(self._place, self._warn):
                    if command.id not in passed:
                        passed.add(command.id)
                        self.receive(command)
                failed = ""
            except OSError as error:  # a bucket or a shared folder that is away for a while
                if str(error) != failed:
                    failed = str(error)
                    self._warn(f"commands cannot be read or answered: {error}")
            if is_last:
                return

    def _write_state(self, describe: Callable[[], DriverState]) -> None:
        try:
            write_state(self._place, describe())
            self._undescribed = ""
        # Any error, also of reading what other threads change: without this thread, nobody could stop the search.
        except Exception as error:
            if repr(error) != self._undescribed:
                self._undescribed = repr(error)
                self._warn(f"the state of the search cannot be written: {error!r}")

    def _remove_unread(self, written: dict[str, float], after_s: float) -> None:
        """Remove answers that nobody has fetched, and wait for that at the end: their clients may have been killed."""
        while written:
            for id in [id for id, at in written.items() if time.monotonic() - at >= after_s]:
                remove_answer(self._place, id)
                del written[id]
            if not self._over.is_set() or not {*written} & {*list_answers(self._place)}:
                return
            time.sleep(POLL_S)
