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


class Components(NamedTuple):
    """The grids that a readout looks at, cell by cell.

    Attributes:
        colors: The color of each cell in each component, shape (C, N).
        keys: The colors of each cell as one number, shape (N,).
        patterns: Which components are background at each cell, and whether the first two are equal, as one number,
            shape (N,).
        num_keys: The number of possible keys.
    """

    colors: Cells
    keys: Cells
    patterns: Cells
    num_keys: int

    @classmethod
    def from_grids(cls, parts: Sequence[Sequence[Grid]]) -> "Components":
        """Flatten the grids of each component."""
        colors = np.stack([flatten(grids) for grids in parts])
        keys, patterns = colors[0], (colors[0] == 0).astype(np.int64)
        for index, component in enumerate(colors[1:], 1):
            keys = keys + COLORS**index * component
            patterns = patterns + ((component == 0).astype(np.int64) << index)
        if len(colors) > 1:
            patterns = patterns + ((colors[0] == colors[1]).astype(np.int64) << len(colors))
        return cls(colors, keys, patterns, COLORS ** len(colors))

    def renumber_keys(self) -> "Components":
        """Return the same components with the keys that occur as 0, 1, 2, so that tables of them are small."""
        present, keys = np.unique(self.keys, return_inverse=True)
        return self._replace(keys=keys, num_keys=len(present))

    @property
    def num_patterns(self) -> int:
        """Return the number of possible patterns."""
        return 1 << (len(self.colors) + (len(self.colors) > 1))


class Lookup(NamedTuple):
    """What a table says about N cells.

    Attributes:
        entries: The most frequent output color of the cell's key, the lowest one of several.
        copies: The color in the component that was right most often for the cell's pattern.
        is_seen: Whether the table has the key.
        is_sure: Whether the table has the pattern, and the copy was always right.
    """

    entries: Cells
    copies: Cells
    is_seen: NDArray[np.bool_]
    is_sure: NDArray[np.bool_]

    def is_entry(self, copies_first: bool) -> NDArray[np.bool_]:
        """Return which cells are answered by their entry, and not by a copy."""
        return self.is_seen & ~self.is_sure if copies_first else self.is_seen

    def get_colors(self, copies_first: bool) -> Cells:
        """Return the answered colors, shape (N,)."""
        return np.where(self.is_entry(copies_first), self.entries, self.copies)


class Tables(NamedTuple):
    """What was counted in some demonstrations, for T tables.

    Attributes:
        outputs: How often each output color was seen with each key, shape (T, keys, 10).
        patterns: How many cells had each pattern, shape (T, patterns).
        copies: How often each component had the output's color, shape (T, C, patterns).
    """

    outputs: Cells
    patterns: Cells
    copies: Cells

    @classmethod
    def build(cls, components: Components, targets: Targets, tables: Cells, number: int) -> "Tables":
        """Count the cells of each of `number` tables, where `tables` of shape (N,) is the table of each cell."""
        places = (tables * components.num_keys + components.keys) * COLORS + targets.colors
        outputs = np.bincount(places, minlength=number * components.num_keys * COLORS)
        cells = tables * components.num_patterns + components.patterns
        size = number * components.num_patterns
        copies = [np.bincount(cells[colors == targets.colors], minlength=size) for colors in components.colors]
        return cls(
            outputs.reshape(number, components.num_keys, COLORS),
            np.bincount(cells, minlength=size).reshape(number, -1),
            np.stack([part.reshape(number, -1) for part in copies], axis=1),
        )

    def add_up(self) -> "Tables":
        """Return one table of all counts."""
        return Tables(*(part.sum(0, keepdims=True) for part in self))

    def leave_out(self) -> "Tables":
        """Return for each table one of the counts of all others."""
        return Tables(*(whole - part for whole, part in zip(self.add_up(), self, strict=True)))

    def look_up(self, components: Components, tables: Cells) -> Lookup:
        """Look up N cells, where `tables` of shape (N,) is the table that is asked about each cell."""
        source = self.copies.argmax(1)[tables, components.patterns]
        always = np.asarray((self.copies.max(1) == self.patterns) & (self.patterns > 0))
        is_seen = np.asarray(self.outputs.any(-1))
        return Lookup(
            self.outputs.argmax(-1)[tables, components.keys],
            components.colors[source, np.arange(len(tables))],
            is_seen[tables, components.keys],
            always[tables, components.patterns],
        )


def fit_readout(components: Components, targets: Targets) -> Readout:
    """Fit a readout, with or without `copies_first`, whichever meets more hidden demonstrations, then cells."""
    components = components.renumber_keys()
    own = Tables.build(components, targets, targets.owners, len(targets.sizes))
    # On what the table is fitted on, `copies_first` changes nothing: each key is seen, and a sure copy is right.
    shown = targets.compute_accuracies(own.add_up().look_up(components, np.zeros_like(targets.owners)).entries)
    hidden = own.leave_out().look_up(components, targets.owners)
    readouts = []
    for copies_first in (False, True):
        accuracies = targets.compute_accuracies(hidden.get_colors(copies_first))
        shares = (float(accuracies.mean()), float((accuracies == 1).mean()), float((shown == 1).mean()))
        readouts.append(Readout(*shares, copies_first))
    return max(readouts, key=lambda readout: (readout.hidden_share, readout.accuracy))


def answer(components: Components, targets: Targets, asked: Components, copies_first: bool) -> tuple[Cells, float]:
    """Answer the cells of a test by the table of all demonstrations.

    Args:
        components: The components of the demonstrations.
        targets: The outputs of the demonstrations.
        asked: The components of the test, with M cells.
        copies_first: See `Readout`.

    Returns:
        The colors, shape (M,), and their ambiguity in nats: the mean entropy of the table's entries. It is 0 for a copy
        that was always right, and log(10) for another copy.
    """
    table = Tables.build(components, targets, np.zeros_like(targets.owners), 1)
    lookup = table.look_up(asked, np.zeros_like(asked.keys))
    counts = table.outputs[0, asked.keys]
    shares = counts / counts.sum(-1, keepdims=True).clip(min=1)
    entropy = -(shares * np.log(shares.clip(min=1e-12))).sum(-1)
    doubt = np.where(lookup.is_sure, 0.0, math.log(COLORS))
    return lookup.get_colors(copies_first), float(np.where(lookup.is_entry(copies_first), entropy, doubt).mean())


def flatten(grids: Sequence[Grid]) -> Cells:
    """Return the cells of all grids in one row, int64."""
    return np.concatenate([grid.ravel() for grid in grids]).astype(np.int64)
