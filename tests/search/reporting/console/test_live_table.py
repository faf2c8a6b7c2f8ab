import pytest
from rich.console import Console

from searchlight.search.reporting.console.progress import LiveTable
from tests.search.objectives import VAL_SCORE


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
    assert shown(board)[:3] == ["3 of 4 trials done, 1 training", "1 completed, 2 failed", "trial 2: because of 2"]


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
    assert lines[0] == "0 of 4 trials done, 2 training, 1 waiting"
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
