"""Baselines without learning for comparison with an agent: the best guesses, and a table of neighborhoods."""

from collections import Counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from searchlight.models.arc.evaluation.answers import EVALUATION_BATCH, EvaluationSet
from searchlight.models.arc.evaluation.metrics import compute_metrics, tally
from searchlight.models.arc.puzzles import (
    PAD,
    SYMBOLS,
    Batch,
    Grid,
    guess_outputs,
    guess_sizes,
    measure_agreement,
    read_grid,
)

Canvas = NDArray[np.uint8]
ERRORS = np.linspace(0.01, 0.9, 90)  # shares of wrong cells that an answer may be scored as having


def score_unlearned(evaluation_set: EvaluationSet) -> dict[str, float]:
    """Score the best guesses and the table of neighborhoods.

    Args:
        exam: With one view of each test.

    Returns:
        `score_guesses` and `score_lookup` of tests and rehearsals together, each answered by the first choice;
        `pass2_output_guesses` and `pass2_output_lookup` of the tests.
    """
    shares: dict[str, list[float]] = {"guesses": [], "lookup": []}
    attempts: dict[str, dict[int, tuple[Grid, Grid]]] = {"guesses": {}, "lookup": {}}

    for asked in (evaluation_set.tests, *([] if evaluation_set.rehearsals is None else [evaluation_set.rehearsals])):
        for indices in asked.plan(EVALUATION_BATCH):
            batch = asked.build_batch(indices)
            guessed, found = find_two_guesses(batch), look_up(batch)
            pairs = {"guesses": guessed, "lookup": [(one, pair[0]) for one, pair in zip(found, guessed, strict=True)]}
            for name, answers in pairs.items():
                targets = batch.target.numpy()
                right = (compute_right_share(one, target) for (one, _), target in zip(answers, targets, strict=True))
                fits = asked.fits[indices].tolist()
                shares[name] += [share * fit for share, fit in zip(right, fits, strict=True)]
                if asked is evaluation_set.tests:
                    read = [(read_grid(first), read_grid(second)) for first, second in answers]
                    attempts[name] |= dict(zip(indices.tolist(), read, strict=True))

    report = {f"score_{name}": compute_point_score(torch.tensor(found)) for name, found in shares.items()}
    for name, given in attempts.items():
        scored = compute_metrics(tally(evaluation_set.puzzles, [given[index] for index in sorted(given)]))
        report[f"pass2_output_{name}"] = scored["pass2_output"]
    return report


def find_two_guesses(batch: Batch) -> list[tuple[Canvas, Canvas]]:
    """Find the two guesses that agree best with the demonstrations, as canvases, for each episode."""
    inputs = torch.cat([batch.query[:, None], batch.demo_inputs], dim=1)
    guesses = guess_outputs(inputs, guess_sizes(inputs, batch.demo_outputs, batch.demo_mask))
    trust = measure_agreement(guesses[:, 1:], batch.demo_outputs, batch.demo_mask)
    found = []
    for options, order in zip(
        guesses[:, 0].to(torch.uint8).numpy(), trust.argsort(dim=1, descending=True), strict=True
    ):
        first = options[int(order[0])]
        others = (options[index] for index in order.tolist() if not np.array_equal(options[index], first))
        found.append((first, next(others, first)))
    return found


def look_up(batch: Batch) -> list[Canvas]:
    """Answer each cell with what its 3x3 neighborhood became in the demonstrations, as a canvas for each episode.

    A neighborhood that was not shown is looked up by its cell alone, and a symbol that was not shown stays.
    """
    answers = []
    for query, inputs, outputs, mask in zip(*(part.numpy() for part in batch[:1] + batch[2:5]), strict=True):
        near: dict[bytes, Counter[int]] = {}
        alone: dict[int, Counter[int]] = {}
        for source, target in zip(inputs[mask], outputs[mask], strict=True):
            for key, cell, answer in zip(
                _list_neighborhoods(source), source.ravel().tolist(), target.ravel().tolist(), strict=True
            ):
                near.setdefault(key, Counter())[answer] += 1
                alone.setdefault(cell, Counter())[answer] += 1
        cells = [
            (near.get(key) or alone.get(cell) or Counter({cell: 1})).most_common(1)[0][0]
            for key, cell in zip(_list_neighborhoods(query), query.ravel().tolist(), strict=True)
        ]
        answers.append(np.array(cells, dtype=np.uint8).reshape(query.shape))
    return answers


def compute_point_score(right: Tensor) -> float:
    """Compute the likelihood of answers that are points: in hindsight as unsure as is best.

    Args:
        right: Share of right symbols of each answer, shape (answers,).

    Returns:
        The mean over answers of the geometric mean over cells, where right symbols get 1 - e and wrong ones e / 11.
    """
    shares = right.double().numpy()[:, None]
    logs = shares * np.log(1 - ERRORS) + (1 - shares) * np.log(ERRORS / (SYMBOLS - 1))
    return float(np.exp(logs).mean(0).max()) if len(shares) else 0.0


def compute_right_share(answer: Canvas, target: Canvas) -> float:
    """Compute the share of right symbols of a grid and its edge."""
    shown = target != PAD
    return float((answer == target)[shown].mean())


def _list_neighborhoods(canvas: Canvas) -> list[bytes]:
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(canvas, 1), (3, 3))
    return [window.tobytes() for row in windows for window in row]
