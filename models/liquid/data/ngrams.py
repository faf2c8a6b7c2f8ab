"""What models that count can make of bytes: the baselines that a trained model has to beat."""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

LONGEST = 7  # that fits the 63 bits of a key


def bits_per_byte(train: Bytes, test: Bytes, orders: int = 4) -> list[float]:
    """Cross-entropy of n-gram models of orders 1, 2, ... on `test`, in bits per byte.

    Counts of `train`, interpolated as by Witten and Bell (1991, method C; Chen & Goodman 1999, section 2.4):

        p_n(c | h) = (N(hc) + D(h) p_{n-1}(c | h')) / (N(h) + D(h))

    with N the counts, D(h) how many different bytes follow h, h' the context without its oldest byte, and p_0 the
    uniform 1/256. A context that never occurred leaves p_{n-1}. Every byte has a positive probability, and they add up
    to one. The first bytes of `test`, for which the longest model has no context, are scored by none.

    Args:
        train: (n,) uint8.
        test: (m,) uint8 with m at least `orders`.
        orders: 1..7, the longest n-gram.

    Returns:
        One number for each order.
    """
    if not 1 <= orders <= LONGEST:
        raise ValueError(f"orders must lie in 1..{LONGEST}, but got {orders}. Longer n-grams of bytes do not fit.")
    for name, data in (("train", train), ("test", test)):
        if len(data) < orders:
            raise ValueError(f"{name} must have at least {orders} bytes, but got {len(data)}. Give more of them.")
    probability = np.full(len(test) - orders + 1, 1 / 256)
    bits = []
    for order in range(1, orders + 1):
        grams, counts = np.unique(_keys(train, order), return_counts=True)
        contexts, starts = np.unique(grams >> 8, return_index=True)
        totals = np.add.reduceat(counts, starts)
        different = np.diff(np.append(starts, len(grams)))

        asked = _keys(test, order)[orders - order :]
        seen = _counted(grams, counts, asked)
        total = _counted(contexts, totals, asked >> 8)
        distinct = _counted(contexts, different, asked >> 8)
        known = total > 0
        mixed = (seen + distinct * probability)[known] / (total + distinct)[known]
        probability[known] = mixed
        bits.append(float(-np.log2(probability).mean()))
    return bits


def _keys(data: Bytes, order: int) -> NDArray[np.int64]:
    """The n-gram that starts at each place, oldest byte first, as one number; shape (len(data) - order + 1,)."""
    size = len(data) - order + 1
    keys = np.zeros(size, dtype=np.int64)
    for offset in range(order):
        keys = keys << 8 | data[offset : offset + size]
    return keys


def _counted(keys: NDArray[np.int64], counts: NDArray[np.int64], asked: NDArray[np.int64]) -> NDArray[np.int64]:
    """The counts of those asked for, 0 for those that are not among the sorted keys."""
    places = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[places] == asked, counts[places], 0)
