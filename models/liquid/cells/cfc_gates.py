"""The next state of a CfC from its heads, for one step, and its derivatives, for all steps."""

import torch
from torch import Tensor


class Gated:
    """h' = f (1 - s) + s g, or f + s g without `blend`; f and g are tanh, s = sigmoid(t_a dt + t_b).

    Args:
        heads: Memory of the heads, shape (T, B, 3, units) or with `dt` (T, B, 4, units). Before step t it holds sums of
            weighted inputs, after it f, g, s in place, or with `dt` f, g, t_a, s.
        dt: Shape (T, B, 1), or None if the last head is t_a + t_b.
        blend: Whether the gate reduces f by the share of g.
    """

    def __init__(self, heads: Tensor, dt: Tensor | None, blend: bool) -> None:
        self.heads, self.dt, self.blend = heads, dt, blend

    def open(self) -> None:
        """Slice all steps at once, which is much faster than one by one."""
        self.steps = list(
            zip(
                self.heads[:, :, :2].flatten(2).unbind(),
                self.heads[:, :, 0].unbind(),
                self.heads[:, :, 1].unbind(),
                self.heads[:, :, 2].unbind(),
                self.heads[:, :, -1].unbind(),
                strict=True,
            )
        )
        self.times = None if self.dt is None else self.dt.unbind()

    def advance(self, t: int, after: Tensor) -> None:
        """Write the state after step t to `after`, shape (B, units)."""
        both, f, g, a, s = self.steps[t]
        both.tanh_()
        if self.times is not None:
            torch.addcmul(s, a, self.times[t], out=s)
        s.sigmoid_()
        if self.blend:
            torch.lerp(f, g, s, out=after)
        else:
            torch.addcmul(f, s, g, out=after)

    def slopes(self) -> Tensor:
        """Return the derivatives of the next state by the heads' sums, for all steps, in the shape of the heads."""
        f, g, s = self.heads[:, :, 0], self.heads[:, :, 1], self.heads[:, :, -1]
        made = torch.empty_like(self.heads)
        to_f = torch.addcmul(f.new_ones(()), f, f, value=-1)
        made[:, :, 0] = to_f * (1 - s) if self.blend else to_f
        made[:, :, 1] = torch.addcmul(s, s * g, g, value=-1)
        to_s = torch.addcmul(s, s, s, value=-1).mul_(g - f if self.blend else g)
        made[:, :, -1] = to_s
        if self.dt is not None:
            made[:, :, 2] = to_s * self.dt
        return made

    def grad_dt(self, grad_heads: Tensor) -> Tensor:
        """Return the gradient of dt, shape (T, B, 1), from that of the heads."""
        return (grad_heads[:, :, -1] * self.heads[:, :, 2]).sum(-1, keepdim=True)


class Pure:
    """h' = A - A exp(-dt (|w_tau| + |f|)) f: the solution of the ODE itself, with one linear head f.

    Args:
        heads: Memory of the heads, shape (T, B, 1, units).
        dt: Shape (T, B, 1), or None for steps of 1.
        rate: |w_tau|, shape (units,).
        level: A, shape (units,).
    """

    def __init__(self, heads: Tensor, dt: Tensor | None, rate: Tensor, level: Tensor) -> None:
        self.f, self.dt, self.rate, self.level = heads.squeeze(2), dt, rate, level

    def open(self) -> None:
        """Slice all steps at once, which is much faster than one by one."""
        self.steps = self.f.unbind()
        self.times = None if self.dt is None else self.dt.unbind()

    def advance(self, t: int, after: Tensor) -> None:
        """Write the state after step t to `after`, shape (B, units)."""
        f = self.steps[t]
        exponent = f.abs().add_(self.rate).neg_()
        if self.times is not None:
            exponent.mul_(self.times[t])
        torch.addcmul(self.level, exponent.exp_().mul_(f), self.level, value=-1, out=after)

    def slopes(self) -> Tensor:
        """Return the derivatives of the next state by the heads' sums, for all steps, in the shape of the heads."""
        return self._decayed().mul_(self._scaled(self.f.abs()) - 1).mul_(self.level).unsqueeze(2)

    def grads(self, grad_after: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return the gradients of dt, rate and level from that of the states, shape (T, B, units)."""
        decayed = self._decayed()
        by_exponent = grad_after * self.level * decayed * self.f
        dt = None if self.dt is None else (by_exponent * (self.f.abs() + self.rate)).sum(-1, keepdim=True)
        return dt, self._scaled(by_exponent).sum((0, 1)), (grad_after * (1 - decayed * self.f)).sum((0, 1))

    def _decayed(self) -> Tensor:
        return torch.exp_(-self._scaled(self.f.abs() + self.rate))

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.dt is None else x * self.dt
