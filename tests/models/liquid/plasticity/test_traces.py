"""Traces: what a step finds of the spikes before it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.liquid.plasticity import traces


def test_a_spike_is_found_from_the_next_step_on() -> None:
    spikes = torch.zeros(1, 6, 2)
    spikes[0, 1, 0] = 1
    expected = torch.zeros(1, 6, 2)
    expected[0, 2:, 0] = torch.tensor([math.exp(-n / 20) for n in range(1, 5)])
    torch.testing.assert_close(traces(spikes, 20), expected)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 40), st.floats(0.1, 500.0))
def test_traces_are_those_of_a_loop(seed: int, steps: int, tau: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    spikes, trace = torch.rand(2, steps, 3, generator=generator), torch.zeros(2, 3)
    found = traces(spikes, tau)
    for t in range(steps):
        torch.testing.assert_close(found[:, t], trace, rtol=1e-5, atol=1e-6)
        trace = math.exp(-1 / tau) * (trace + spikes[:, t])


def test_the_spikes_stay_as_they_are() -> None:
    spikes = torch.rand(2, 30, 3)
    before = spikes.clone()
    traces(spikes, 15)
    assert torch.equal(spikes, before)


@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan])
def test_a_time_constant_is_above_zero(tau: float) -> None:
    with pytest.raises(ValueError, match="tau must be above 0"):
        traces(torch.zeros(1, 2, 1), tau)
