"""N-gram models of bytes, the baselines of a trained model."""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def compute_bits_per_byte(train: Bytes, test: Bytes, orders: int = 4) -> list[float]:
    """Return the cross-entropy of n-gram models of orders 1, 2, ... on `test`, in bits per byte.

    Counts of `train`, interpolated as by Witten and Bell (1991, method C; Chen & Goodman 1999, section 2.4):

        p_n(c | h) = (N(hc) + D(h) p_{n-1}(c | h')) / (N(h) + D(h))

    with N the counts, D(h) the number of different bytes after h, h' the context without its oldest byte, and p_0 the
    uniform 1/256. A context that never occurred has p_{n-1}. Every byte has a positive probability, and they sum to
    one. The first bytes of `test`, for which the longest model has no context, are not scored.

    Args:
        train: (n,) uint8.
        test: (m,) uint8 with m at least `orders`.
        orders: The longest n-gram, 1..7: 8 bytes do not fit into the 63 bits of a key.

    Returns:
        One number for each order.
    """
    for name, data in (("train", train), ("test", test)):
        if len(data) < orders:
            raise ValueError(f"{name} must have at least {orders} bytes, but got {len(data)}. Give more of them.")
    probability = np.full(len(test) - orders + 1, 1 / 256)
    bits = []
    for order in range(1, orders + 1):
        grams, counts = np.unique(_compute_keys(train, order), return_counts=True)
        contexts, starts = np.unique(grams >> 8, return_index=True)
        totals = np.add.reduceat(counts, starts)
        different = np.diff(np.append(starts, len(grams)))

        asked = _compute_keys(test, order)[orders - order :]
        seen = _look_up_counts(grams, counts, asked)
        total = _look_up_counts(contexts, totals, asked >> 8)
        distinct = _look_up_counts(contexts, different, asked >> 8)
        known = total > 0
        mixed = (seen + distinct * probability)[known] / (total + distinct)[known]
        probability[known] = mixed
        bits.append(float(-np.log2(probability).mean()))
    return bits


def _compute_keys(data: Bytes, order: int) -> NDArray[np.int64]:
    """Return the n-gram at each position as one number, oldest byte first, of shape (len(data) - order + 1,)."""
    size = len(data) - order + 1
    keys = np.zeros(size, dtype=np.int64)
    for offset in range(order):
        keys = keys << 8 | data[offset : offset + size]
    return keys


def _look_up_counts(keys: NDArray[np.int64], counts: NDArray[np.int64], asked: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the counts of the requested keys, 0 for those that are not in the sorted `keys`."""
    places = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[places] == asked, counts[places], 0)
