"""The building blocks of the grid agent: embedding of positions, a residual block, and attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGEST_CANVAS = 32
SAME = 10.0  # how much cells of one symbol attract each other, before the usual scaling


class PlaceEmbedding(nn.Module):
    """An embedding of a cell's position, counted from the upper left and from the lower right corner of the grid.

    Args:
        width: The number of channels.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.row_start = nn.Embedding(LARGEST_CANVAS, width)
        self.row_end = nn.Embedding(2 * LARGEST_CANVAS, width)
        self.column_start = nn.Embedding(LARGEST_CANVAS, width)
        self.column_end = nn.Embedding(2 * LARGEST_CANVAS, width)
        for table in (self.row_start, self.row_end, self.column_start, self.column_end):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, sizes: Tensor, side: int) -> Tensor:
        """Return embeddings (..., side, side, width) of all positions of grids with heights and widths (..., 2)."""
        places = torch.arange(side, device=sizes.device)
        from_end = places - sizes[..., None] + LARGEST_CANVAS
        rows = self.row_start(places) + self.row_end(from_end[..., 0, :])
        columns = self.column_start(places) + self.column_end(from_end[..., 1, :])
        where: Tensor = rows.unsqueeze(-2) + columns.unsqueeze(-3)
        return where


class GridBlock(nn.Module):
    """A residual block: 3x3 neighborhood, row and column means, then a two-layer network per cell.

    Args:
        width: Channels.
        dropout: Share of the block's outputs dropped in training, 0..1.
    """

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.near = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.far = nn.Parameter(torch.zeros(2, width))
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.down.weight, std=0.02)
        nn.init.zeros_(self.down.bias)

    def forward(self, x: Tensor, film: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Mix a batch of canvases.

        Args:
            x: Shape (N, S, S, width), contiguous.
            film: Scale (added to 1) and shift of the normalized channels, each of shape (N, 1, 1, width).

        Returns:
            Same shape as `x`.
        """
        # In float16 most CPUs run a grouped convolution group by group, ten times slower than in float32.
        with torch.autocast(x.device.type, enabled=False):
            mixed = self.near(x.to(self.near.weight.dtype).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        mixed = mixed + self.far[0] * x.mean(2, keepdim=True) + self.far[1] * x.mean(1, keepdim=True)
        mixed = self.norm(mixed)
        if film is not None:
            mixed = mixed * (1 + film[0]) + film[1]
        changed: Tensor = x + self.dropout(self.down(F.gelu(self.up(mixed))))
        return changed


class Lookup(nn.Module):
    """Attention from the query's cells to all cells of the demonstrations.

    Each head returns features and votes. The vote for a symbol is the sum of its attention over the cells whose output
    has this symbol. This is the soft nearest-neighbor classifier of matching networks (Vinyals et al. 2016, arXiv
    1606.04080), over cells.

    Args:
        width: The number of channels.
        heads: The number of attention heads.
        symbols: The number of symbols with votes.
    """

    def __init__(self, width: int, heads: int, symbols: int) -> None:
        super().__init__()
        self.heads, self.symbols = heads, symbols
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, heads * symbols)
        self.key = nn.Linear(width, heads * symbols)
        self.same = nn.Parameter(torch.full((heads, 1, 1), SAME))
        # Keys and values of one size allow the fused kernel: features take half, votes the other half.
        self.value = nn.Linear(width, heads * symbols)
        self.read = nn.Linear(heads * symbols, width)

    def forward(
        self, x: Tensor, pairs: Tensor, asked: Tensor, shown: Tensor, answers: Tensor, demo_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the features and votes of each cell of the query.

        Args:
            x: The query's cells, shape (B, Q, width).
            pairs: The demonstrations' cells, shape (B, D, C, width).
            asked: The query's symbols, one-hot float of shape (B, Q, symbols).
            shown: The input symbols of the demonstrations, one-hot float of shape (B, D, C, symbols).
            answers: The output symbols of the demonstrations, one-hot float of shape (B, D, C, symbols).
            demo_mask: bool of shape (B, D); cells of a demonstration marked False get no attention.

        Returns:
            The features, shape (B, Q, width), and the votes in 0..1, shape (B, Q, heads, symbols).
        """
        batch, demos, cells, _ = pairs.shape
        query = self._split(self.query(self.norm(x)))
        key = self._split(self.key(pairs.flatten(1, 2)))
        # Half of a key is the symbol itself, so that cells of one symbol find each other from the start.
        query = torch.cat([query, (self.same * asked[:, None]).to(query.dtype)], dim=-1)
        key = torch.cat([key, shown.to(key.dtype).flatten(1, 2)[:, None].expand_as(key)], dim=-1)
        value = self._split(self.value(pairs.flatten(1, 2)))
        ballots = answers.to(value.dtype).flatten(1, 2)[:, None].expand(-1, self.heads, -1, -1)
        value = torch.cat([value, ballots], dim=-1)
        # Half of the smallest number leaves room to add a score to: beyond the smallest lies -inf, then NaN.
        masked = torch.finfo(query.dtype).min / 2
        bias = torch.zeros(batch, demos, 1, dtype=query.dtype, device=x.device)
        bias = bias.masked_fill(~demo_mask[:, :, None], masked).expand(-1, -1, cells).reshape(batch, 1, 1, -1)
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        # Without any demonstration attention is spread over empty slots, which say nothing.
        found = found * demo_mask.any(1)[:, None, None, None]
        features, votes = found.transpose(1, 2).chunk(2, dim=-1)
        return self.read(features.flatten(2)), votes

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)
