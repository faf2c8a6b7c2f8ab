"""The rule: what a few spikes say and the sums of many. Plastic synapses: when weights change and by how much."""

import copy
import math
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from searchlight.models.liquid.plasticity import PlasticSynapses, sum_pairs


def spikes(seed: int = 0, batch: int = 4, rate: float = 0.2) -> tuple[Tensor, Tensor]:
    """Independent spikes of two populations, shapes (batch, 50, 5) and (batch, 50, 3)."""
    generator = torch.Generator().manual_seed(seed)
    return tuple((torch.rand(batch, 50, n, generator=generator) < rate).float() for n in (5, 3))


def step_by_step(pre: Tensor, post: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """The rule as the papers write it: one synapse after another, one step after another."""
    potentiation = torch.zeros(post.shape[-1], pre.shape[-1], dtype=pre.dtype)
    depression = torch.zeros_like(potentiation)
    for b, q, p in product(range(len(pre)), range(post.shape[-1]), range(pre.shape[-1])):
        before = after = 0.0
        for s_p, s_q in zip(pre[b, :, p].tolist(), post[b, :, q].tolist(), strict=True):
            potentiation[q, p] += 0.005 * s_q * before
            depression[q, p] += 0.00525 * s_p * after
            before, after = math.exp(-1 / tau) * (before + s_p), math.exp(-1 / tau) * (after + s_q)
    return potentiation, depression


@settings(max_examples=12)
@given(seed=st.integers(0, 1000), steps=st.integers(1, 30), rate=st.floats(0.05, 0.9), tau=st.floats(0.5, 40))
def test_whole_sequences_sum_what_their_steps_say(seed: int, steps: int, rate: float, tau: float) -> None:
    pre, post = (part[:2, :steps] for part in spikes(seed, rate=rate))
    before = pre.clone()
    expected = step_by_step(pre.double(), post.double(), tau)
    torch.testing.assert_close(sum_pairs(pre, post, tau), expected, rtol=1e-4, atol=1e-6, check_dtype=False)
    assert torch.equal(pre, before)


def build(seed: int = 0, **settings: Any) -> PlasticSynapses:
    torch.manual_seed(seed)
    return PlasticSynapses(5, 3, **({"rate": 20.0} | settings))


def everything(synapses: PlasticSynapses) -> list[Tensor]:
    return [value.clone() for value in (*synapses.state_dict().values(), *synapses.get_pending())]


def same(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def test_an_update_is_what_the_rule_says_per_step_less_toward_a_bound() -> None:
    synapses = build(rate=2.0, tau=7.0, cap=0.9)
    before, (pre, post) = synapses.weight.clone(), spikes()
    torch.testing.assert_close(synapses(pre), (pre @ before.T) / math.sqrt(5))
    assert synapses.update() is None  # nothing was observed
    assert torch.equal(synapses.weight, before)
    synapses.observe(pre, post)
    figures = synapses.update()
    assert synapses.update() is None
    stronger, weaker = sum_pairs(pre, post, 7.0)
    change = 2 / (4 * 50) * (stronger * (1 - before) - weaker * before)
    torch.testing.assert_close(synapses.weight, before + change)
    expected = {"change": change.norm() / before.norm(), "capped": 0, "weight": (before + change).mean(), "bound": 0}
    assert figures == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-4)


def test_silence_changes_nothing() -> None:
    synapses = build(rate=1.0)
    before = synapses.weight.clone()
    synapses.observe(torch.zeros(2, 20, 5), torch.zeros(2, 20, 3))
    assert synapses.update()["change"] == 0
    assert torch.equal(synapses.weight, before)


@pytest.mark.parametrize("at", [0.001, 1.0])
def test_weights_leave_their_bounds(at: float) -> None:
    synapses = build(rate=1.0)
    synapses.weight.fill_(at)
    synapses.observe(*spikes(rate=0.001))
    assert synapses.update()["bound"] == 1
    for seed in range(40):
        synapses.observe(*spikes(seed))
        figures = synapses.update()
    assert figures["bound"] < 0.1


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), cap=st.floats(0.01, 0.99), rate=st.floats(0.01, 1e4))
def test_weights_stay_in_bounds_and_updates_under_the_cap(seed, cap, rate) -> None:
    generator = torch.Generator().manual_seed(seed)
    synapses = build(seed, cap=cap, rate=rate)
    for _ in range(4):
        before = synapses.weight.clone()
        share = torch.rand(1, generator=generator)
        synapses.observe(*((torch.rand(2, 20, n, generator=generator) < share).float() for n in (5, 3)))
        figures = synapses.update()
        assert ((synapses.weight >= 0) & (synapses.weight <= 1)).all()
        assert (synapses.weight - before).norm() <= cap * before.norm() * (1 + 1e-5)
        assert figures["change"] <= cap * (1 + 1e-5)
        assert (figures["capped"] == 1) == (figures["change"] >= cap * (1 - 1e-5))


def test_updates_are_fp32_and_have_no_graph() -> None:
    plain, mixed = build(), build()
    for seed in range(3):
        pre, post = spikes(seed)
        plain.observe(pre.requires_grad_(), post)
        plain.update()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed.observe(pre.bfloat16(), post.bool())
            mixed.update()
        assert same(everything(plain), everything(mixed))
    assert not any(tensor.requires_grad for tensor in (*plain.buffers(), *plain.get_pending()))
    assert [name for name, _ in plain.named_parameters()] == ["scale"]


def test_spikes_that_are_not_finite_are_refused() -> None:
    pre, post = spikes()
    synapses = build()
    before = synapses.weight.clone()
    synapses.observe(pre * math.nan, post)
    with pytest.raises(ValueError, match="spikes must be finite"):
        synapses.update()
    assert torch.equal(synapses.weight, before)


def test_training_goes_on_from_its_state_or_a_discarded_window() -> None:
    first, second = build(), build(seed=1)
    first.observe(*spikes(1))
    first.update()
    before = everything(first)
    first.observe(*spikes(3))
    assert not same(everything(first), before)
    first.discard()
    assert same(everything(first), before)
    assert list(first.state_dict()) == ["scale", "weight"]
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for synapses in (first, second):
        synapses.observe(*spikes(2))
        synapses.update()
    assert same(everything(first), everything(second))


def test_checkpoint_of_before_loads_if_it_is_of_this_rule() -> None:
    synapses, state = build(), build(seed=1).state_dict()
    synapses.load_state_dict({**state, "state": torch.zeros(0), "changes": torch.zeros(0, 3, 5)})
    assert torch.equal(synapses.weight, state["weight"])
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: \"state\""):
        synapses.load_state_dict({**state, "state": torch.zeros(3)})


def test_spikes_of_other_shapes_are_refused() -> None:
    pre, post = spikes()
    for wrong in ((post, pre), (pre[:, 1:], post), (pre[0], post[0])):
        with pytest.raises(ValueError, match="spikes must have the shapes"):
            build().observe(*wrong)
