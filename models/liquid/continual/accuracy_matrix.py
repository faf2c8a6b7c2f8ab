"""The accuracy matrix of a stream of tasks, and its metrics."""

import math
from collections.abc import Mapping, Sequence
from typing import Any


class Matrix:
    """R[i, j], the score on task j after i tasks were learned; row 0 is before training. Higher is better.

    Any score is possible that is comparable between tasks: accuracy, or minus the bits per byte. After k tasks, each
    metric is that of the stream of these k tasks. A mean over nothing is 0.

    Args:
        tasks: The number of tasks of the stream, T.
    """

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks
        self.rows: list[list[float]] = []

    @property
    def learned(self) -> int:
        """The number of learned tasks, k."""
        return max(0, len(self.rows) - 1)

    def record(self, learned: int, scores: Sequence[float]) -> None:
        """Record the finite scores on all tasks after `learned` tasks, which may be those of the last row again."""
        self.rows[learned:] = [[float(score) for score in scores]]

    @property
    def average(self) -> float:
        """Mean score on the learned tasks after the last of them, or on all tasks before training.

        (ACC of Lopez-Paz & Ranzato 2017, arXiv 1706.08840; A_k of Chaudhry et al. 2018, arXiv 1801.10112.)
        """
        return _compute_mean(self.rows[-1][: self.learned or self.tasks] if self.rows else [])

    @property
    def forgetting(self) -> float:
        """Mean loss of score since a task's best, over all learned tasks except the last; at most 0 without any.

        (F_k of Chaudhry et al. 2018, arXiv 1801.10112. The row before training does not count.)
        """
        earlier = range(self.learned - 1)
        return _compute_mean([max(row[task] for row in self.rows[1:-1]) - self.rows[-1][task] for task in earlier])

    @property
    def backward_transfer(self) -> float:
        """Mean change of a task's score by later tasks; negative if they reduce it.

        (BWT of Lopez-Paz & Ranzato 2017, arXiv 1706.08840.)
        """
        return _compute_mean([self.rows[-1][task] - self.rows[task + 1][task] for task in range(self.learned - 1)])

    @property
    def forward_transfer(self) -> float:
        """Mean gain of a task's score by earlier tasks, right before the task is learned.

        After k of T tasks, the next task is included, since its score is known. (FWT of Lopez-Paz & Ranzato 2017,
        arXiv 1706.08840.)
        """
        reached = range(1, min(self.learned + 1, self.tasks))
        return _compute_mean([self.rows[task][task] - self.rows[0][task] for task in reached])

    @property
    def learning_accuracy(self) -> float:
        """Mean score on each task right after it was learned: the diagonal.

        (LA of Riemer et al. 2019, arXiv 1810.11910.)
        """
        return _compute_mean([self.rows[task + 1][task] for task in range(self.learned)])

    def state_dict(self) -> dict[str, Any]:
        return {"tasks": self.tasks, "rows": [list(row) for row in self.rows]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state.

        Raises:
            ValueError: It has another number of tasks.
        """
        if state["tasks"] != self.tasks:
            raise ValueError(f"a matrix's state must have {self.tasks} tasks, but got {state['tasks']}.")
        self.rows = [list(row) for row in state["rows"]]


def _compute_mean(scores: Sequence[float]) -> float:
    return math.fsum(scores) / len(scores) if scores else 0.0
