"""The metrics of attempts at test outputs, as sums that can be added over processes."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from searchlight.models.arc.puzzles import Grid, Puzzle, compute_cell_accuracy

SUMS = (
    "puzzles",
    "puzzle_hits",
    "outputs",
    "output_hits",
    "size_hits",
    "cell_acc",
    "identity_acc",
    "same_shape_outputs",
    "cell_acc_same_shape",
    "identity_acc_same_shape",
    "changed_cells",
    "changed_cell_hits",
)


def tally(puzzles: Iterable[Puzzle], attempts: Sequence[tuple[Grid, Grid]]) -> dict[str, float]:
    """Return the scores of attempts as sums and counts, which may be added over processes.

    Args:
        puzzles: The tested puzzles, each with all its tests.
        attempts: Two ranked attempts for each test, in the order of the puzzles and their tests.

    Returns:
        The sums by name, from which `compute_metrics` computes the metrics.
    """
    sums = dict.fromkeys(SUMS, 0.0)
    remaining = iter(attempts)
    for puzzle in puzzles:
        hits = 0
        for source, truth in puzzle.tests:
            first, second = next(remaining)
            accuracy, identity = compute_cell_accuracy(first, truth), compute_cell_accuracy(source, truth)
            hits += any(np.array_equal(attempt, truth) for attempt in (first, second))
            sums["outputs"] += 1
            sums["cell_acc"] += accuracy
            sums["identity_acc"] += identity
            sums["size_hits"] += first.shape == truth.shape
            if puzzle.keeps_shape:
                sums["same_shape_outputs"] += 1
                sums["cell_acc_same_shape"] += accuracy
                sums["identity_acc_same_shape"] += identity
            if source.shape == truth.shape:
                changed = source != truth
                sums["changed_cells"] += int(changed.sum())
                if first.shape == truth.shape:
                    sums["changed_cell_hits"] += int((changed & (first == truth)).sum())

        sums["puzzles"] += 1
        sums["output_hits"] += hits
        sums["puzzle_hits"] += hits == len(puzzle.tests)
    return sums


def compute_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Return metrics from the sums of `tally`. A share of an empty set is 0.

    Returns:
        pass2_task: The share of puzzles for which one of two attempts is right for each test output. This is the
            official score.
        pass2_output: The share of test outputs for which one of two attempts is right.
        size_acc: The share of first attempts with the right height and width.
        cell_acc: The mean `compute_cell_accuracy` of first attempts over outputs.
        identity_acc: The mean `compute_cell_accuracy` of the input as an answer.
        cell_lift: The gain over the input, as a share of the largest gain: (acc - identity) / (1 - identity).
        cell_acc_same_shape, cell_lift_same_shape: The same over puzzles that keep the shape of their inputs.
        changed_cell_acc: The share of right cells among the cells that the answer changes, over the same puzzles.
    """

    def compute_share(part: str, whole: str) -> float:
        return sums[part] / sums[whole] if sums[whole] else 0.0

    def compute_lift(accuracy: float, identity: float) -> float:
        return (accuracy - identity) / (1.0 - identity) if identity < 1.0 else 0.0

    accuracy, identity = compute_share("cell_acc", "outputs"), compute_share("identity_acc", "outputs")
    same_accuracy = compute_share("cell_acc_same_shape", "same_shape_outputs")
    same_identity = compute_share("identity_acc_same_shape", "same_shape_outputs")
    return {
        "pass2_task": compute_share("puzzle_hits", "puzzles"),
        "pass2_output": compute_share("output_hits", "outputs"),
        "size_acc": compute_share("size_hits", "outputs"),
        "cell_acc": accuracy,
        "identity_acc": identity,
        "cell_lift": compute_lift(accuracy, identity),
        "cell_acc_same_shape": same_accuracy,
        "cell_lift_same_shape": compute_lift(same_accuracy, same_identity),
        "changed_cell_acc": compute_share("changed_cell_hits", "changed_cells"),
    }
