"""What can be seen on a canvas without learning: extents, rays, enclosures, objects.

Everything here is integer arithmetic on whole batches, without gradients, and does not depend on how the colours
are called or how the grid is turned.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from models.arc.canvas import FIRST_COLOUR, PAD, SYMBOLS

CELL_FEATURES = 10


def extents(canvases: Tensor) -> Tensor:
    """Height and width of the grid on each canvas: (..., S, S) symbols -> int64 of shape (..., 2)."""
    colour = canvases >= FIRST_COLOUR
    return torch.stack([colour.any(-1).sum(-1), colour.any(-2).sum(-1)], dim=-1)


def background(canvases: Tensor) -> Tensor:
    """The most frequent colour of each canvas: (N, S, S) symbols -> int64 symbols of shape (N,)."""
    counts = F.one_hot(canvases.flatten(1).long(), SYMBOLS).sum(1)
    return counts[:, FIRST_COLOUR:].argmax(1) + FIRST_COLOUR


def rays(canvases: Tensor) -> Tensor:
    """What a cell sees when it looks along its row and column past the background.

    Args:
        canvases: Symbols, shape (N, S, S).

    Returns:
        The first colour other than the background to the left, right, above and below, PAD where there is none;
        int64 symbols of shape (N, 4, S, S).
    """
    symbols = canvases.long()
    seen = (symbols >= FIRST_COLOUR) & (symbols != background(canvases)[:, None, None])
    views = []
    for turned, mask in ((symbols, seen), (symbols.mT, seen.mT)):
        for reverse in (False, True):
            line, solid = (turned.flip(-1), mask.flip(-1)) if reverse else (turned, mask)
            places = torch.arange(1, line.shape[-1] + 1, device=line.device)
            last = torch.where(solid, places, 0).cummax(-1).values
            before = F.pad(last, (1, 0))[..., :-1]
            found = F.pad(line, (1, 0), value=PAD).gather(-1, before)
            views.append(found.flip(-1) if reverse else found)
    return torch.stack([views[0], views[1], views[2].mT, views[3].mT], dim=1)


def objects(canvases: Tensor) -> Tensor:
    """The size of the object that each cell belongs to, and where that object stands among the others.

    An object is a connected area (sides, not corners) of one colour.

    Args:
        canvases: Symbols, shape (N, S, S).

    Returns:
        float32 of shape (N, S, S, 10), 0 outside the grid: is background; area / 8 (at most 1) and its square
        root as a share of the grid; area is 1; area is 2; is the largest, is the smallest object that is not
        background; touches the edge of the grid; height and width / 8 (at most 1).
    """
    number, side, _ = canvases.shape
    symbols = canvases.long()
    inside = symbols >= FIRST_COLOUR
    cells = side * side
    label = torch.arange(1, cells + 1, device=symbols.device, dtype=torch.float32).view(1, side, side)
    label = label.expand(number, -1, -1) * inside
    same_below = (symbols[:, 1:] == symbols[:, :-1]) & inside[:, 1:]
    same_right = (symbols[:, :, 1:] == symbols[:, :, :-1]) & inside[:, :, 1:]
    for _ in range(2 * side):
        before = label
        down = torch.where(same_below, torch.maximum(label[:, 1:], label[:, :-1]), 0.0)
        label = torch.maximum(label, F.pad(down, (0, 0, 1, 0)))
        label = torch.maximum(label, F.pad(down, (0, 0, 0, 1)))
        right = torch.where(same_right, torch.maximum(label[:, :, 1:], label[:, :, :-1]), 0.0)
        label = torch.maximum(label, F.pad(right, (1, 0)))
        label = torch.maximum(label, F.pad(right, (0, 1)))
        if torch.equal(before, label):
            break
    index = label.long().flatten(1)
    zeros = symbols.new_zeros(number, cells + 1)
    area = zeros.scatter_add(1, index, torch.ones_like(index))
    place = torch.arange(side, device=symbols.device)
    row = place[:, None].expand(side, side).flatten().expand(number, -1)
    column = place.expand(side, side).flatten().expand(number, -1)
    bounds = []
    for where in (row, column):
        highest = zeros.scatter_reduce(1, index, where, "amax", include_self=False)
        lowest = zeros.scatter_reduce(1, index, where, "amin", include_self=False)
        bounds.append((lowest.gather(1, index), highest.gather(1, index)))
    own = area.gather(1, index)
    ground = (symbols == background(canvases)[:, None, None]).flatten(1)
    shape = inside.flatten(1)
    solid = shape & ~ground
    largest = own.masked_fill(~solid, 0).amax(1, keepdim=True)
    smallest = own.masked_fill(~solid, cells + 1).amin(1, keepdim=True)
    size = extents(canvases)
    (top, bottom), (left, right) = bounds
    at_edge = (top == 0) | (left == 0) | (bottom == size[:, :1] - 1) | (right == size[:, 1:] - 1)
    features = torch.stack(
        [
            ground.float(),
            own.clamp(max=8) / 8,
            (own / size.prod(1, keepdim=True).clamp(min=1)).sqrt(),
            (own == 1).float(),
            (own == 2).float(),
            (solid & (own == largest)).float(),
            (solid & (own == smallest)).float(),
            at_edge.float(),
            (bottom - top + 1).clamp(max=8) / 8,
            (right - left + 1).clamp(max=8) / 8,
        ],
        dim=-1,
    )
    return (features * shape[..., None]).view(number, side, side, CELL_FEATURES)
