"""A decoder-only transformer of bytes: RMSNorm before each part, rotary positions, SwiGLU, and a tied embedding."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

SYMBOLS = 256
BASE_HEAD = 32  # width of a head whose scores muP divides by its root, as without muP
BASE = 10_000.0  # base of the wavelengths of rotary positions (Su et al. 2021, arXiv:2104.09864)


class Attention(nn.Module):
    """Causal attention over earlier positions."""

    def __init__(self, width: int, heads: int, scale: float | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.scale = scale  # of the scores. None: the inverse root of the head's width
        self.inputs = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Map x, (B, T, width), with `rotation`, (2, T, width / heads), to the same shape."""
        batch, steps, width = x.shape
        parts = self.inputs(x).view(batch, steps, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        rotation = rotation.to(query.dtype)
        mixed = functional.scaled_dot_product_attention(
            _rotate(query, rotation), _rotate(key, rotation), value, is_causal=True, scale=self.scale
        )
        result: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, steps, width))
        return result


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv:2002.05202), with as many weights as an MLP whose hidden layer is 4 * width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = 8 * round(width / 3)
        self.inputs = nn.Linear(width, 2 * hidden, bias=False)
        self.output = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.inputs(x).chunk(2, dim=-1)
        result: Tensor = self.output(functional.silu(gate) * value)
        return result


class Block(nn.Module):
    """Attention and a feed-forward layer, each added to the residual stream."""

    def __init__(self, width: int, heads: int, scale: float | None = None) -> None:
        super().__init__()
        self.before_attention = nn.RMSNorm(width)
        self.attention = Attention(width, heads, scale)
        self.before_feed_forward = nn.RMSNorm(width)
        self.feed_forward = FeedForward(width)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x), rotation)
        result: Tensor = x + self.feed_forward(self.before_feed_forward(x))
        return result


class Transformer(nn.Module):
    """A transformer that returns logits for the next byte at each position.

    Args:
        width: The width of the residual stream, a multiple of `2 * heads`.
        depth: The number of blocks.
        heads: The number of attention heads.
        recompute: Store only the input of each block, and recompute the block in backward.
        base_width: The width from which muP scales (Yang et al. 2022, arXiv:2203.03466, table 8): the embedding begins
            with the entries of that width, the logits are divided by the growth, and the scores of a head by its width
            instead of the root of it. None: the standard parametrization.
    """

    def __init__(
        self, width: int, depth: int, heads: int, recompute: bool = False, base_width: int | None = None
    ) -> None:
        super().__init__()
        growth = width / base_width if base_width else 1.0
        self.output_scale = 1 / growth
        self.head_width = width // heads
        self.recompute = recompute
        self.embedding = nn.Embedding(SYMBOLS, width)
        scale = BASE_HEAD**0.5 / self.head_width if base_width else None
        self.blocks = nn.ModuleList(Block(width, heads, scale) for _ in range(depth))
        self.norm = nn.RMSNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                std = parameter.shape[1] ** -0.5
                nn.init.normal_(parameter, std=std * (2 * depth) ** -0.5 if name.endswith("output.weight") else std)
        if growth != 1:
            with torch.no_grad():
                self.embedding.weight.mul_(growth**0.5)

    def forward(self, symbols: Tensor) -> Tensor:
        """Map bytes, (B, T), to logits, (B, T, 256)."""
        x = self.embedding(symbols.long())
        rotation = _compute_rotation(symbols.shape[1], self.head_width, x.device)
        for block in self.blocks:
            x = checkpoint(block, x, rotation, use_reentrant=False) if self.recompute else block(x, rotation)
        return functional.linear(self.norm(x) * self.output_scale, self.embedding.weight)


def count_flops(model: Transformer, steps: int) -> float:
    """Return the FLOP of training per byte in sequences of `steps`, without recomputation.

    The count is that of Chowdhery et al. 2022 (arXiv:2204.02311, appendix B): six per weight of a matrix product, plus
    attention over all positions. The tied embedding is one matrix product.
    """
    weights = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() > 1)
    return 6.0 * weights + 12.0 * len(model.blocks) * model.embedding.embedding_dim * steps


def _compute_rotation(steps: int, width: int, device: torch.device) -> Tensor:
    """Return the cosines and sines of the rotary angles, (2, steps, width)."""
    frequencies = BASE ** -(torch.arange(0, width, 2, device=device) / width)
    angles = torch.outer(torch.arange(steps, device=device), frequencies).repeat(1, 2)
    return torch.stack([angles.cos(), angles.sin()])


def _rotate(x: Tensor, rotation: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * rotation[0] + torch.cat([-second, first], dim=-1) * rotation[1]
