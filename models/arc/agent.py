"""A compact agent that answers a query grid from demonstrations in its context."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.arc.canvas import BORDER, FIRST_COLOUR, SYMBOLS


class GridBlock(nn.Module):
    def __init__(self, width: int, dropout: float, expand: int = 2) -> None:
        super().__init__()
        self.local = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.axial = nn.Parameter(torch.zeros(3, width))
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Conv2d(width, expand * width, 1)
        self.out = nn.Conv2d(expand * width, width, 1)
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.zeros_(self.out.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(N, S, S, width) -> same."""
        x = x.permute(0, 3, 1, 2)
        h = self.local(x)
        rows, cols = x.mean(3, keepdim=True), x.mean(2, keepdim=True)
        h = h + self.axial[0, :, None, None] * rows + self.axial[1, :, None, None] * cols
        h = self.norm(h.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        h = self.out(F.gelu(self.mix(h)))
        return (x + self.dropout(h)).permute(0, 2, 3, 1)


class Pointwise(nn.Conv2d):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(a, b, 1)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(1, -1, 1, x.shape[-1]).permute(0, 3, 1, 2)
        return super().forward(flat).permute(0, 2, 3, 1).reshape(*x.shape[:-1], -1)


class GridAgent(nn.Module):
    def __init__(
        self, width: int = 48, steps: int = 2, heads: int = 4, dropout: float = 0.0, prompt_dim: int = 0,
        layers: int = 3, pair_layers: int = 1,
    ) -> None:
        super().__init__()
        self.steps, self.heads, self.head_dim = steps, heads, 24
        self.names = nn.Parameter(torch.randn(SYMBOLS, width) * 0.3)
        self.roles = nn.Linear(7, width)
        self.place = nn.Linear(12, width)
        self.row_from_start = nn.Embedding(32, width)
        self.row_from_end = nn.Embedding(65, width)
        self.col_from_start = nn.Embedding(32, width)
        self.col_from_end = nn.Embedding(65, width)
        for e in (self.row_from_start, self.row_from_end, self.col_from_start, self.col_from_end):
            nn.init.normal_(e.weight, std=0.1)
        self.trunk = nn.ModuleList(GridBlock(width, dropout) for _ in range(layers))
        self.pair_in = Pointwise(2 * width, width)
        self.pair = nn.ModuleList(GridBlock(width, dropout) for _ in range(pair_layers))
        self.pair_norm = nn.LayerNorm(width)
        self.key = Pointwise(width, heads * self.head_dim)
        self.value = Pointwise(width, heads * (self.head_dim - SYMBOLS))
        self.task = nn.Linear(width, 2 * width)
        nn.init.zeros_(self.task.weight)
        nn.init.zeros_(self.task.bias)
        self.prompt = nn.Linear(prompt_dim, 2 * width) if prompt_dim else None
        self.query_norm = nn.LayerNorm(width)
        self.query = Pointwise(width, heads * self.head_dim)
        self.read = Pointwise(heads * self.head_dim, width)
        self.feedback = Pointwise(width, width)
        self.core = GridBlock(width, dropout)
        self.head_norm = nn.LayerNorm(width)
        self.point = Pointwise(width, width)
        nn.init.zeros_(self.point.weight)
        nn.init.zeros_(self.point.bias)
        self.bias = nn.Parameter(torch.zeros(SYMBOLS))
        self.gates = Pointwise(width, 1 + heads)
        nn.init.zeros_(self.gates.weight)
        with torch.no_grad():
            self.gates.bias.fill_(0.5)
            self.gates.bias[0] = 4.0

    def forward(self, query: Tensor, demo_inputs: Tensor, demo_outputs: Tensor, demo_mask: Tensor,
                prompt: Tensor | None = None) -> Tensor:
        B, D, S, _ = demo_inputs.shape
        cells = S * S
        inputs = torch.cat([query[:, None], demo_inputs], 1).long()
        everything = F.one_hot(torch.cat([inputs, demo_outputs.long()], 1), SYMBOLS).float()  # B,1+2D,S,S,12
        one_q, one_in, one_out = everything.split([1, D, D], 1)
        live = demo_mask.float()[:, :, None]
        # roles
        m = demo_mask.float()[:, :, None]
        cq = one_q.sum((1, 2, 3)); ci = one_in.sum((2, 3)) * m; co = one_out.sum((2, 3)) * m
        changed = (demo_inputs != demo_outputs)[..., None].float()
        gained = ((one_out * changed).sum((2, 3)) * m).sum(1); lost = ((one_in * changed).sum((2, 3)) * m).sum(1)
        nd = m.sum(1).clamp(min=1)
        roles = torch.stack([(cq / cells).sqrt(), (ci.sum(1) / cells / nd).sqrt(), (co.sum(1) / cells / nd).sqrt(),
                             (ci > 0).float().sum(1) / nd, (co > 0).float().sum(1) / nd,
                             (gained / cells / nd).sqrt(), (lost / cells / nd).sqrt()], -1)
        table = self.names + self.roles(roles)  # B,12,w
        emb = (everything.flatten(1, 3) @ table).view(B, 1 + 2 * D, S, S, -1)
        # place
        colour = inputs >= FIRST_COLOUR
        h = colour.any(3).sum(2); w = colour.any(2).sum(2)  # B,1+D
        ar = torch.arange(S, device=query.device)
        rows = self.row_from_start(ar) + self.row_from_end(ar - h[..., None] + 32)
        cols = self.col_from_start(ar) + self.col_from_end(ar - w[..., None] + 32)
        x = emb[:, : 1 + D] + rows[:, :, :, None] + cols[:, :, None, :]
        x = x.flatten(0, 1)
        for block in self.trunk:
            x = block(x)
        x = x.view(B, 1 + D, S, S, -1)
        pair = self.pair_in(torch.cat([x[:, 1:], emb[:, 1 + D:]], -1)).flatten(0, 1)
        for block in self.pair:
            pair = block(pair)
        pair = self.pair_norm(pair).view(B, D * cells, -1)
        task = (pair.view(B, D, cells, -1).mean(2) * live).sum(1) / nd
        film = self.task(task)
        if self.prompt is not None and prompt is not None:
            film = film + self.prompt(prompt)
        scale, shift = film[:, None, None].chunk(2, -1)
        keys = self.key(pair).view(B, -1, self.heads, self.head_dim).transpose(1, 2)
        values = self.value(pair).view(B, D * cells, self.heads, -1).transpose(1, 2)
        symbols = one_out.reshape(B, 1, D * cells, SYMBOLS).to(values.dtype).expand(-1, self.heads, -1, -1)
        values = torch.cat([values, symbols], -1)
        mask = torch.zeros(B, D, 1, device=query.device, dtype=keys.dtype).masked_fill(~demo_mask[:, :, None], torch.finfo(keys.dtype).min)
        mask = mask.expand(B, D, cells).reshape(B, 1, 1, -1)
        state = x[:, 0]
        everywhere = []
        asked = one_q[:, 0]
        for step in range(self.steps):
            state = state * (1 + scale) + shift if step == 0 else state
            q = self.query(self.query_norm(state)).view(B, cells, self.heads, -1).transpose(1, 2)
            found = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            votes = found[..., -SYMBOLS:]
            state = state + self.read(found.transpose(1, 2).reshape(B, S, S, -1))
            state = self.core(state)
            out = self.head_norm(state)
            gates = self.gates(out).view(B, cells, -1)
            logits = self.point(out).view(B, cells, -1) @ table.transpose(1, 2) + self.bias
            logits = logits + gates[..., :1] * asked.view(B, cells, -1)
            logits = logits + (gates[..., 1:].transpose(1, 2)[..., None] * votes).sum(1)
            logits = logits.view(B, S, S, -1).float()
            everywhere.append(logits)
            if step + 1 < self.steps:
                probs = logits.softmax(-1).view(B, cells, -1)
                state = state + self.feedback((probs.to(table.dtype) @ table)).view(B, S, S, -1)
        return torch.stack(everywhere)
