import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from contextlib import suppress

import pytest
from rich.console import Console

from searchlight.search.reporting.console.progress import WARNINGS, LiveTable, Progress
from searchlight.search.space.search_space import resolve_space
from searchlight.trainables.task import TaskConfig, searchable
from tests.search.objectives import VAL_LOSS, VAL_SCORE
from tests.search.trial_states import TrialStates

LIMIT_S = 60.0


class Config(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)


class Halves(TaskConfig):
    scale: float = searchable(2.0, low=1.0, high=4.0, when={"precision": "fp16"})


class Shown:
    """What a short search shows, and the observer that shows it."""

    def __init__(self, config=Config, terminal=False, quiet=False, earlier=()):
        self.stream = io.StringIO()
        console = Console(file=self.stream, force_terminal=terminal, force_interactive=terminal, width=120)
        board, space = LiveTable(VAL_LOSS, 2, 6.0), resolve_space(config, {}, {})
        self.progress = Progress(board, space, console, earlier, quiet)
        self.trials = TrialStates(self.progress)

    def play(self):
        with self.progress:
            self.trials.start(0, {"precision": "bf16", "lr": 0.01, "epochs": 9})
            self.trials.report(0, 1, {"val/loss": 0.5})
            self.trials.report(0, 2, {"val/loss": 0.75})
            self.trials.end(0, "diverged", "val/loss is nan")
        return self.stream.getvalue()


def test_search_without_a_terminal_shows_plain_lines():
    shown = Shown()
    shown.play()
    shown.trials.start(7, {"precision": "bf16", "lr": 0.01}, copied_from=3)
    assert shown.stream.getvalue().splitlines() == [
        "trial   0  created   precision=bf16  lr=0.01",
        "trial   0  epoch 1   val/loss 0.5",
        "trial   0  epoch 2   val/loss 0.75",
        "trial   0  diverged  val/loss is nan",
        "trial   7  created   precision=bf16  lr=0.01  from trial 3",
    ]


def test_confirming_run_is_shown_apart_from_the_trials():
    shown = Shown()
    shown.play()
    confirms = {"trial": None, "round": 0, "seed": 17}
    shown.trials.start(8, {"precision": "bf16", "lr": 0.01}, confirms=confirms)
    shown.trials.report(8, 1, {"val/loss": 0.01})
    shown.trials.end(8, "completed")
    assert shown.stream.getvalue().splitlines()[-3:] == [
        "trial   8  created   confirms the defaults with seed 17",
        "trial   8  epoch 1   val/loss 0.01",
        "trial   8  completed",
    ]
    shown.progress._console.print(shown.progress._board)
    assert "1 of 2 trials done, 0 running, 1 confirming runs done" in shown.stream.getvalue()
    assert "best val/loss 0.01" not in shown.stream.getvalue(), "a confirming run is no trial"


def test_parameters_that_do_not_apply_are_not_shown():
    shown = Shown(Halves)
    for number, precision in enumerate(["bf16", "fp16"]):
        shown.trials.start(number, {"precision": precision, "scale": 2.0})
    words = [line.split()[3:] for line in shown.stream.getvalue().splitlines()]
    assert words == [["precision=bf16"], ["precision=fp16", "scale=2"]]


def test_quiet_search_shows_failures_and_warnings_alone():
    shown = Shown(terminal=True, quiet=True)
    with shown.progress as progress:
        progress.say("search s: starting Ray")
        for number, outcome in enumerate(["completed", "failed", "pruned"]):
            shown.trials.start(number, {"precision": "bf16", "lr": 0.01})
            shown.trials.report(number, 1, {"val/loss": 0.5})
            shown.trials.end(number, outcome, "because")
        progress.warn("no progress for 60 s")
    assert shown.stream.getvalue() == "trial   1  failed    because\nno progress for 60 s\n"


def test_last_warnings_are_kept_for_who_looks_later():
    progress = Shown(quiet=True).progress
    progress.say("search s: starting Ray")
    for number in range(WARNINGS + 2):
        progress.warn(f"no progress for {number} s")
    assert [text for _, text in progress.warnings] == [f"no progress for {n} s" for n in range(2, WARNINGS + 2)]


def test_expected_end_follows_commands_to_the_budget(make_searcher):
    searcher, _, _ = make_searcher(trials=3)
    expected = searcher.schedule.expected_cost(3)
    board = LiveTable(VAL_LOSS, 3, expected + 6.0)  # six epochs of confirming runs
    progress = Progress(board, searcher.space, Console(file=io.StringIO()))
    progress.follow(searcher)
    searcher.reports.callbacks = (progress,)
    searcher.limits.trials = 5
    searcher.suggest("t0")
    assert (board.trials, board.expected) == (5, searcher.schedule.expected_cost(5) + 6.0)


def test_resumed_search_shows_what_its_driver_had_not():
    dead = Shown()
    dead.play()
    dead.trials.start(1, {"precision": "bf16", "lr": 0.01})
    dead.trials.report(1, 1, {"val/loss": 0.25})
    shown = Shown(earlier=dead.trials.get_all())
    dead.trials.observers = [shown.progress]
    dead.trials.report(1, 2, {"val/loss": 0.125})
    dead.trials.tell(1)
    dead.trials.tell(1, is_over=True)
    assert shown.stream.getvalue().splitlines() == [
        "trial   1  epoch 2   val/loss 0.125",
        "trial   1  interrupted the search was stopped",
    ]
    shown.progress._console.print(shown.progress._board)
    assert "2 of 2 trials done, 0 running\n1 diverged, 1 interrupted\n" in shown.stream.getvalue()


def test_terminal_shows_ended_trials_above_the_live_table():
    text = Shown(terminal=True).play()
    assert "epoch 1 " not in text
    assert "0.5 after epoch 2  val/loss is nan  precision=bf16  lr=0.01\n" in text
    assert text.index("1 of 2 trials done, 0 running") > text.index("after epoch 2")


# A search as a process of its own: rich asks the standard streams of the process how large the terminal is.
PLAYED = """
import sys, time
from searchlight.search.reporting.console.tables import create_console
from searchlight.search.reporting.console.progress import LiveTable
from searchlight.search.reporting.console.progress import Progress
from searchlight.search.space.objectives import Objective
from searchlight.search.space.search_space import resolve_space
from searchlight.trainables.task import TaskConfig, searchable
from tests.search.trial_states import TrialStates

class Config(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)

board = LiveTable(Objective("val/loss", "min"), 50, 150.0)
with Progress(board, resolve_space(Config, {}, {}), create_console(sys.stderr)) as progress:
    trials = TrialStates(progress)
    for number in range(40):
        trials.start(number, {"precision": "bf16", "lr": 0.01, "epochs": 9})
    for number in range(20):
        time.sleep(PAUSE_S)
        trials.report(number, 1, {"val/loss": 1.0 / (number + 1), "time/samples_per_s": 10.0})
        trials.end(number, "failed" if number == 3 else "pruned", "because it was " + "so " * 40)
    time.sleep(1.1)
print("all is well")
"""


def play(stderr, pause_s):
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", PLAYED.replace("PAUSE_S", str(pause_s))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**environment, "TERM": "xterm-256color"},
    )
    limit = threading.Timer(LIMIT_S, process.kill)  # whoever reads what it writes has an end then
    limit.daemon = True
    limit.start()
    return process


def frames(written):
    """What the terminal shows between two looks, as lines without their colors."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", written.replace("\r", ""))
    return [re.sub(r"\x1b\[[?\d]*[A-Za-z]", "", frame).splitlines() for frame in plain.split("\x1b[2K")]


def resize(terminal, rows, columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@pytest.mark.slow
def test_live_table_fits_a_terminal_that_is_resized():
    ours, theirs = pty.openpty()
    resize(theirs, 20, 60)
    process = play(theirs, pause_s=0.1)
    os.close(theirs)
    written = {60: "", 45: ""}
    columns = 60
    with suppress(OSError):  # it has ended
        while data := os.read(ours, 65536):
            written[columns] += data.decode()
            if columns == 60 and "7 of 50" in written[60]:
                columns = 45
                resize(ours, 20, 45)
    assert process.communicate(timeout=LIMIT_S)[0] == "all is well\n"
    os.close(ours)
    for columns, text in written.items():
        boards = [frame for frame in frames(text) if any(line.startswith("best val/loss") for line in frame)]
        settled = boards[2:] if columns == 45 else boards  # a look may have begun before
        assert settled, text
        for frame in settled:
            at = next(index for index, line in enumerate(frame) if re.match(r"\d+ of 50 trials done", line))
            assert max(map(len, frame[at:])) <= columns, frame
            assert len(frame[at:]) < 20, frame
        assert any("trial  epoch  val/loss" in line for line in settled[-1])
        assert any(re.fullmatch(r"and \d+ more", line) for line in settled[-1])
    assert "1 failed" in written[45]
    assert "trial 3: because" in written[45]


@pytest.mark.slow
def test_closed_pipe_and_lost_terminal_end_no_search():
    piped = play(subprocess.PIPE, pause_s=0.05)
    ours, theirs = pty.openpty()
    shown = play(theirs, pause_s=0.05)
    os.close(theirs)
    os.read(ours, 100)
    os.close(ours)
    piped.stderr.readline()
    piped.stderr.close()
    for process in (piped, shown):
        assert process.stdout.read() == "all is well\n"
        assert process.wait(LIMIT_S) == 0


@pytest.fixture
def board(monkeypatch):
    """Of 4 trials with 9 epochs in all, at a clock that the test moves by `board.wait(seconds)`."""
    now = [0.0]
    monkeypatch.setattr("searchlight.search.reporting.console.progress.time.monotonic", lambda: now[0])
    made = LiveTable(VAL_SCORE, trials=4, expected=9.0)
    made.wait = lambda seconds: now.append(now.pop() + seconds)
    return made


def shown(board, width=80, height=24):
    console = Console(width=width, height=height)
    with console.capture() as captured:
        console.print(board)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_summary_tells_outcomes_and_the_last_failure(board):
    for number, outcome in enumerate(["completed", "failed", "failed"]):
        board.add_trial(number, {}, 9)
        board.end_trial(number, outcome, f"because of {number}")
    board.add_trial(3, {}, 9)
    assert shown(board)[:3] == ["3 of 4 trials done, 1 running", "1 completed, 2 failed", "trial 2: because of 2"]


def test_best_is_finite_and_of_a_trial_that_has_not_diverged(board):
    board.add_trial(0, {}, 9)
    for epoch, value in enumerate([0.25, 0.5, float("nan"), float("inf")], start=1):
        board.record_report(0, epoch, {"val/score": value})
    assert "best val/score 0.5, trial 0, epoch 2" in shown(board)
    board.record_report(1, 1, {"val/score": 0.125})
    board.end_trial(0, "diverged", "")
    assert "best val/score 0.125, trial 1, epoch 1" in shown(board)


def test_training_trials_have_rows_and_waiting_ones_are_counted(board):
    for number in range(3):
        board.add_trial(number, {"lr": 0.5} if number else {"scale": 2.0}, 9 if number else None)
        board.record_report(number, 1, {"val/score": 0.25, "time/samples_per_s": 100.0})
        board.record_report(number, 2, {"val/score": 0.125, "time/samples_per_s": 600.0})
    board.live = lambda: {0, 2}
    lines = shown(board)
    assert lines[0] == "0 of 4 trials done, 2 running, 1 waiting"
    assert lines[2].endswith(", 1,200 samples/s")
    assert [line.split() for line in lines[3:]] == [
        ["trial", "epoch", "val/score", "best", "scale", "lr"],
        ["0", "2", "0.125", "0.25", "2"],
        ["2", "2/9", "0.125", "0.25", "0.5"],
    ]


def test_time_left_follows_the_pace_since_the_first_report(board):
    board.add_trial(0, {}, 9)
    board.wait(60)  # in which workers started
    board.record_report(0, 1, {"val/score": 0.25})
    assert shown(board)[2] == "1:00 elapsed"
    board.wait(20)
    for epoch in (2, 3):
        board.record_report(0, epoch, {"val/score": 0.25})
    assert shown(board)[2] == "1:20 elapsed, about 1:00 left"
    board.budget_s = 90.0
    assert shown(board)[2] == "1:20 elapsed, about 0:10 left"
    for number in range(4):
        board.end_trial(number, "completed", "")
    assert shown(board)[3] == "1:20 elapsed"


def test_end_is_told_with_what_it_follows_from(board):
    assert board.estimate_end() is None, "nothing supports one"
    board.gpu_time_left = lambda: 300.0
    assert board.estimate_end() == (300.0, "the GPU-hours left, with as many trials at a time as now")
    board.add_trial(0, {}, 9)
    board.record_report(0, 1, {"val/score": 0.25})
    board.wait(20)
    for epoch in (2, 3):
        board.record_report(0, epoch, {"val/score": 0.25})
    assert board.estimate_end() == (60.0, "the pace so far: 2 epochs took 0:20, and 6 are left")
    board.budget_s = 30.0
    assert board.estimate_end() == (10.0, "its time limit")
    board.wait(20)
    assert board.estimate_end() is None, "it is overdue"


def test_earlier_reports_count_and_take_no_time(board):
    board.record_report(0, 1, {"val/score": 0.5}, is_earlier=True)
    board.record_report(0, 2, {"val/score": 0.75}, is_earlier=True)
    board.add_trial(1, {}, 9)
    board.record_report(1, 1, {"val/score": 0.25})
    board.wait(10)
    board.record_report(1, 2, {"val/score": 0.25})
    lines = shown(board)
    assert lines[1] == "best val/score 0.75, trial 0, epoch 2"
    assert lines[2] == "0:10 elapsed, about 0:50 left"


@pytest.mark.parametrize(("height", "rows"), [(24, 16), (12, 4), (9, 1), (5, 0)])
def test_table_has_as_many_rows_as_the_terminal(board, height, rows):
    for number in range(30):
        board.add_trial(number, {}, 9)
    lines = shown(board, height=height)
    assert len(lines) <= height
    assert sum("/9" in line for line in lines) == rows
    if rows:
        assert lines[-1] == f"and {30 - rows} more"


@pytest.mark.parametrize(
    ("width", "last", "omitted"), [(59, "gamma", ""), (52, "beta", "gamma"), (51, "alpha", "beta, gamma")]
)
def test_columns_that_do_not_fit_are_named_below(board, width, last, omitted):
    board.add_trial(0, {"alpha": 0.001234, "beta": "a long word", "gamma": 3}, 27)
    *_, head, row = lines = shown(board, width=width)
    if omitted:
        *_, head, row, below = lines
        assert below == f"not shown: {omitted}"
    assert head.split()[-1] == last
    assert "…" not in row
    assert len(row) <= width
