"""Whether weights can still be trained."""

from collections.abc import Mapping

import torch
from torch import Tensor


def not_finite(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor] | None = None) -> str | None:
    """The first parameter with an infinity or a NaN, or buffer with a NaN: in buffers, masks may hold infinities.

    Args:
        parameters, buffers: By name, all on one device, which is read once.
    """
    good = {name: parameter.isfinite().all() for name, parameter in parameters.items()}
    good |= {name: buffer.isnan().logical_not().all() for name, buffer in (buffers or {}).items()}
    flags = torch.stack(list(good.values())).tolist() if good else []
    return next((name for name, finite in zip(good, flags, strict=True) if not finite), None)
