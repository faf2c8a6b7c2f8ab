"""The last step of each program: a table from colors to output colors, which is fitted on the demonstrations.

The colors of a cell in the program's grids, the components, are looked up in the table. Colors that no demonstration
shows are copied from one component: the one that was right most often where the same components are background. So
recoloring, masks, and the logic of two halves need no operations of their own.

One table per demonstration is fitted on the others. So the accuracy on a hidden demonstration is honest.

Shapes: N cells, D demonstrations, C components, T tables.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from searchlight.models.arc.puzzles import COLORS, Grid

Cells = NDArray[np.int64]


class Targets(NamedTuple):
    """The outputs of the demonstrations, cell by cell.

    Attributes:
        colors: The colors, shape (N,).
        owners: The demonstration of each cell, shape (N,).
        sizes: The number of cells of each demonstration, shape (D,).
    """

    colors: Cells
    owners: Cells
    sizes: Cells

    @classmethod
    def from_grids(cls, outputs: Sequence[Grid]) -> "Targets":
        """Flatten the outputs of the demonstrations."""
        sizes = np.array([output.size for output in outputs])
        return cls(flatten(outputs), np.repeat(np.arange(len(outputs)), sizes), sizes)

    def compute_accuracies(self, colors: Cells) -> NDArray[np.float64]:
        """Compute the share of right cells of each demonstration, shape (D,)."""
        right = np.bincount(self.owners, weights=colors == self.colors, minlength=len(self.sizes))
        return right / self.sizes


class Readout(NamedTuple):
    """How well a table of the components answers the demonstrations.

    Attributes:
        accuracy: The mean share of right cells in a demonstration, by a table that is fitted on the others.
        hidden_share: The share of demonstrations that such a table meets exactly.
        shown_share: The share of demonstrations that the table of all demonstrations meets exactly.
        copies_first: Whether a copy that was always right comes before the table.
    """

    accuracy: float
    hidden_share: float
    shown_share: float
    copies_first: bool


class Counts(NamedTuple):
    """What was counted in some demonstrations, for T tables.

    Attributes:
        outputs: How often each output color was seen with each key, shape (T, keys, 10).
        patterns: How many cells had each pattern, shape (T, patterns).
        copies: How often each component had the output's color, shape (T, C, patterns).
    """

    outputs: Cells
    patterns: Cells
    copies: Cells

    def predict(self, components: Cells, tables: Cells, copies_first: bool) -> Cells:
        """Predict colors.

        Args:
            components: The colors of N cells in the components, shape (C, N).
            tables: The table that is asked about each cell, shape (N,).
            copies_first: See `Readout`.

        Returns:
            The colors, shape (N,).
        """
        keys, patterns = find_keys(components), find_patterns(components)
        source = self.copies.argmax(1)[tables, patterns]
        copied: Cells = components[source, np.arange(len(tables))]
        known = self.is_known(keys, patterns, tables, copies_first)
        return np.where(known, self.outputs.argmax(-1)[tables, keys], copied)

    def is_known(self, keys: Cells, patterns: Cells, tables: Cells, copies_first: bool) -> NDArray[np.bool_]:
        """Return whether the table answers each cell, shape (N,). The other cells are copied."""
        known: NDArray[np.bool_] = (self.outputs.sum(-1) > 0)[tables, keys]
        return known & ~self.is_sure(patterns, tables) if copies_first else known

    def is_sure(self, patterns: Cells, tables: Cells) -> NDArray[np.bool_]:
        """Return whether the copy of each cell was always right for its pattern, shape (N,)."""
        always = (self.copies.max(1) == self.patterns) & (self.patterns > 0)
        sure: NDArray[np.bool_] = always[tables, patterns]
        return sure


def fit_readout(components: Cells, targets: Targets) -> Readout:
    """Fit a readout to components of shape (C, N), with or without `copies_first`, whichever meets more when hidden."""
    own = count(components, targets, targets.owners, len(targets.sizes))
    total = Counts(*(part.sum(0, keepdims=True) for part in own))
    others = Counts(*(whole - part for whole, part in zip(total, own, strict=True)))
    shown = targets.compute_accuracies(total.predict(components, np.zeros_like(targets.owners), False))
    readouts = []
    for copies_first in (False, True):
        hidden = targets.compute_accuracies(others.predict(components, targets.owners, copies_first))
        shares = (float(hidden.mean()), float((hidden == 1).mean()), float((shown == 1).mean()))
        readouts.append(Readout(*shares, copies_first))
    return max(readouts, key=lambda readout: (readout.hidden_share, readout.accuracy))


def count(components: Cells, targets: Targets, tables: Cells, number: int) -> Counts:
    """Count the cells of each of `number` tables, where `tables` of shape (N,) is the table of each cell."""
    keys, patterns = find_keys(components), find_patterns(components)
    num_keys, num_patterns = COLORS ** len(components), _count_patterns(len(components))
    places = (tables * num_keys + keys) * COLORS + targets.colors
    cells = tables * num_patterns + patterns
    copies = [
        np.bincount(cells[component == targets.colors], minlength=number * num_patterns) for component in components
    ]
    return Counts(
        np.bincount(places, minlength=number * num_keys * COLORS).reshape(number, num_keys, COLORS),
        np.bincount(cells, minlength=number * num_patterns).reshape(number, num_patterns),
        np.stack(copies).reshape(len(components), number, num_patterns).swapaxes(0, 1),
    )


def answer(components: Cells, targets: Targets, asked: Cells, copies_first: bool) -> tuple[Cells, float]:
    """Answer the cells of a test by the table of all demonstrations.

    Args:
        components: The components of the demonstrations, shape (C, N).
        targets: The outputs of the demonstrations.
        asked: The components of the test, shape (C, M).
        copies_first: See `Readout`.

    Returns:
        The colors, shape (M,), and their ambiguity in nats: the mean entropy of the table's entries. It is 0 for a copy
        that was always right, and log(10) for another copy.
    """
    counts = count(components, targets, np.zeros_like(targets.owners), 1)
    keys, patterns, tables = find_keys(asked), find_patterns(asked), np.zeros(asked.shape[1], np.int64)
    known, sure = counts.is_known(keys, patterns, tables, copies_first), counts.is_sure(patterns, tables)
    shares = counts.outputs[0, keys] / counts.outputs[0, keys].sum(-1, keepdims=True).clip(min=1)
    entropy = -(shares * np.log(shares.clip(min=1e-12))).sum(-1)
    doubt = np.where(known, entropy, np.where(sure, 0.0, math.log(COLORS)))
    return counts.predict(asked, tables, copies_first), float(doubt.mean())


def flatten(grids: Sequence[Grid]) -> Cells:
    """Return the cells of all grids in one row, int64."""
    return np.concatenate([grid.ravel() for grid in grids]).astype(np.int64)


def find_keys(components: Cells) -> Cells:
    """Return the colors of the components of each cell as one number, shape (N,)."""
    powers = COLORS ** np.arange(len(components))
    keys: Cells = powers @ components
    return keys


def find_patterns(components: Cells) -> Cells:
    """Return which components are background, and whether the first two are equal, as one number, shape (N,)."""
    patterns: Cells = (1 << np.arange(len(components))) @ (components == 0)
    if len(components) > 1:
        patterns = patterns + ((components[0] == components[1]).astype(np.int64) << len(components))
    return patterns


def _count_patterns(components: int) -> int:
    return 1 << (components + (components > 1))
