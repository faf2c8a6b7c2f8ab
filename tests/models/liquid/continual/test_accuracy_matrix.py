"""What is read from the accuracy matrix, by hand."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.liquid.continual import Matrix

bounded = settings(deadline=None, derandomize=True, max_examples=40)
ROWS = [
    [0.1, 0.2, 0.3],  # before any
    [0.9, 0.4, 0.1],
    [0.6, 0.8, 0.5],
    [0.7, 0.3, 1.0],
]
METRICS = ("average", "forgetting", "backward_transfer", "forward_transfer", "learning_accuracy")


def matrix(rows: list[list[float]]) -> Matrix:
    made = Matrix(len(rows[0]))
    for learned, row in enumerate(rows):
        made.record(learned, row)
    return made


def metrics(made: Matrix) -> dict[str, float]:
    return {name: getattr(made, name) for name in METRICS}


@pytest.mark.parametrize(
    ("learned", "average", "forgetting", "backward", "forward", "learning"),
    [
        (3, 2.0 / 3, (0.2 + 0.5) / 2, (-0.2 - 0.5) / 2, (0.2 + 0.2) / 2, 2.7 / 3),
        (2, 1.4 / 2, 0.3, -0.3, (0.2 + 0.2) / 2, 1.7 / 2),
        (1, 0.9, 0.0, 0.0, 0.2, 0.9),
        (0, 0.2, 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_each_metric_by_hand(
    learned: int, average: float, forgetting: float, backward: float, forward: float, learning: float
) -> None:
    made = matrix(ROWS[: learned + 1])
    assert made.learned == learned
    assert metrics(made) == pytest.approx(
        dict(zip(METRICS, (average, forgetting, backward, forward, learning), strict=True))
    )


def test_without_a_rise_in_between_forgetting_is_from_its_own_end_to_the_last() -> None:  # C100: a_ii and a_Ti
    made = matrix([[0, 0, 0], [0.9, 0.1, 0.1], [0.8, 0.7, 0.2], [0.5, 0.6, 0.9]])
    assert made.forgetting == pytest.approx(((0.9 - 0.5) + (0.7 - 0.6)) / 2) == pytest.approx(-made.backward_transfer)


def test_a_rise_in_between_is_forgotten_too_and_what_was_known_before_any_task_is_not() -> None:
    made = matrix([[1.0, 1.0, 1.0], [0.5, 0.9, 0.1], [0.8, 0.7, 0.2], [0.6, 0.7, 0.9]])
    assert made.forgetting == pytest.approx(((0.8 - 0.6) + (0.9 - 0.7)) / 2)
    assert made.backward_transfer == pytest.approx((0.1 + 0.0) / 2)


def test_what_got_better_is_less_than_nothing_forgotten() -> None:
    assert matrix([[0, 0], [0.5, 0], [0.8, 1]]).forgetting == pytest.approx(-0.3)


@bounded
@given(st.integers(1, 6), st.data())
def test_every_metric_is_a_number_however_far_the_stream_is(tasks: int, data: st.DataObject) -> None:
    scores = st.lists(st.floats(-5, 5), min_size=tasks, max_size=tasks)
    made = Matrix(tasks)
    assert metrics(made) == dict.fromkeys(METRICS, 0.0)
    for learned in range(data.draw(st.integers(0, tasks)) + 1):
        made.record(learned, data.draw(scores))
        assert all(-10 <= value <= 10 for value in metrics(made).values())
        assert made.forgetting >= -made.backward_transfer - 1e-9


def test_the_last_row_may_change_while_its_task_goes_on() -> None:
    made = matrix(ROWS[:2])
    made.record(1, [0.5, 0.5, 0.5])
    assert (made.learned, made.rows) == (1, [ROWS[0], [0.5, 0.5, 0.5]])
    with pytest.raises(ValueError, match="but got 0 after 2 rows"):
        made.record(0, ROWS[0])
    with pytest.raises(ValueError, match="but got 3 after 2 rows"):
        made.record(3, ROWS[0])


def test_rows_that_cannot_be_are_refused() -> None:
    made = matrix(ROWS)
    with pytest.raises(ValueError, match="the next of 3, but got 4"):
        made.record(4, ROWS[0])
    with pytest.raises(ValueError, match="3 finite numbers"):
        made.record(3, [0.1, 0.2])
    with pytest.raises(ValueError, match="3 finite numbers"):
        made.record(3, [0.1, 0.2, float("nan")])
    with pytest.raises(ValueError, match="but got -1 after 0 rows"):
        Matrix(3).record(-1, ROWS[0])
    with pytest.raises(ValueError, match="tasks must be at least 1"):
        Matrix(0)
    assert made.rows == ROWS


def test_a_state_goes_on_where_it_was() -> None:
    made, resumed = matrix(ROWS[:3]), Matrix(3)
    resumed.load_state_dict(json.loads(json.dumps(made.state_dict())))
    resumed.record(3, ROWS[3])
    assert made.learned == 2
    assert metrics(resumed) == metrics(matrix(ROWS))
    with pytest.raises(ValueError, match="must have 2 tasks, but got 3"):
        Matrix(2).load_state_dict(made.state_dict())
