"""Plastic synapses: when weights change and by how much, within which bounds, and how their rates are learned."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.liquid.plasticity import BCM, RULES, Homeostatic, Pair, PlasticSynapses, Rule

EVERY_RULE = pytest.mark.parametrize("name", RULES)


def build(rule: Rule, seed: int = 0, **settings: Any) -> PlasticSynapses:
    torch.manual_seed(seed)
    return PlasticSynapses(5, 3, rule, **({"rate": 20.0} | settings))


def everything(synapses: PlasticSynapses) -> list[Tensor]:
    return [value.clone() for value in (*synapses.state_dict().values(), *synapses.pending())]


def same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def test_the_current_is_what_the_weights_let_through(spikes) -> None:
    synapses = build(Pair())
    pre, _ = spikes()
    current = synapses(pre)
    assert current.shape == (4, 50, 3)
    torch.testing.assert_close(current, (pre @ synapses.weight.T) / math.sqrt(5))


def test_an_update_is_what_the_rule_says_per_sample_and_step(spikes) -> None:
    synapses = build(Pair(), rate=2.0)
    before, (pre, post) = synapses.weight.clone(), spikes()
    synapses.observe(pre, post)
    synapses.update()
    sums = Pair().sums(pre, post)
    expected = (before + 2 * (sums.potentiation - sums.depression) / (4 * 50)).clamp(0, 1)
    torch.testing.assert_close(synapses.weight, expected)


@EVERY_RULE
def test_micro_batches_and_ranks_change_nothing(name: str, spikes) -> None:
    pre, post = spikes(batch=6)
    whole, cut, *ranks = (build(RULES[name](), learn_rates=True) for _ in range(4))
    whole.observe(pre, post)
    for rows in (slice(0, 1), slice(1, 4), slice(4, 6)):
        cut.observe(pre[rows], post[rows])
    for rank, rows in zip(ranks, (slice(0, 2), slice(2, 6)), strict=True):
        rank.observe(pre[rows], post[rows])
    for mine, theirs in zip(ranks[0].pending(), ranks[1].pending(), strict=True):
        mine += theirs
    figures = [synapses.update() for synapses in (whole, cut, ranks[0])]
    for synapses, figure in zip((cut, ranks[0]), figures[1:], strict=True):
        assert figure == pytest.approx(figures[0], rel=1e-4)
        torch.testing.assert_close(synapses.weight, whole.weight)
        torch.testing.assert_close(synapses.state, whole.state)


def test_a_rank_without_a_batch_applies_what_the_others_saw(spikes) -> None:
    busy, idle = build(Pair()), build(Pair())
    busy.observe(*spikes())
    for mine, theirs in zip(idle.pending(), busy.pending(), strict=True):
        mine += theirs
    busy.update()
    idle.update()
    assert torch.equal(busy.weight, idle.weight)


@EVERY_RULE
def test_silence_changes_no_weight(name: str) -> None:
    synapses = build(RULES[name](strength=0.0) if name == "homeostatic" else RULES[name]())
    before = synapses.weight.clone()
    synapses.observe(torch.zeros(2, 20, 5), torch.zeros(2, 20, 3))
    assert synapses.update()["change"] == 0
    assert torch.equal(synapses.weight, before)


def test_silence_strengthens_all_weights_alike_under_homeostasis() -> None:
    synapses = build(Homeostatic(strength=0.5), rate=1.0)
    before = synapses.weight.clone()
    synapses.observe(torch.zeros(2, 20, 5), torch.zeros(2, 20, 3))
    synapses.update()
    expected = 1 + 0.5 * 0.1 * -math.expm1(-20 / 1000)  # the rate's mean has fallen from its target that far
    torch.testing.assert_close(synapses.weight, before * expected)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    name=st.sampled_from(sorted(RULES)),
    seed=st.integers(0, 1000),
    rate=st.floats(0, 1e4),
    w_max=st.floats(0.1, 10),
    softness=st.floats(0, 2),
    stiffness=st.floats(0, 5),
    cap=st.floats(0.01, 0.99),
)
def test_weights_stay_in_bounds_and_updates_under_the_cap(
    name: str, seed: int, rate: float, w_max: float, softness: float, stiffness: float, cap: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    synapses = build(
        RULES[name](), seed, rate=rate, w_max=w_max, softness=softness, stiffness=stiffness, cap=cap, learn_rates=True
    )
    for _ in range(4):
        before = synapses.weight.clone()
        share = torch.rand(1, generator=generator)
        synapses.observe(*((torch.rand(2, 20, n, generator=generator) < share).float() for n in (5, 3)))
        figures = synapses.update()
        assert (synapses.weight >= 0).all()
        assert (synapses.weight <= synapses.w_max).all()
        assert (synapses.weight - before).norm() <= cap * before.norm() * (1 + 1e-5)
        assert figures["change"] <= cap * (1 + 1e-5)
        assert (figures["capped"] == 1) == (figures["change"] >= cap * (1 - 1e-5))


def test_an_update_under_the_cap_is_not_touched_by_it(spikes) -> None:
    loose, tight = build(Pair(), cap=0.9), build(Pair(), cap=1e-3)
    for synapses in (loose, tight):
        synapses.observe(*spikes())
    assert loose.update()["capped"] == 0
    figures = tight.update()
    assert figures["capped"] == 1
    assert figures["change"] == pytest.approx(1e-3, rel=1e-4)


def changes(synapses: PlasticSynapses, pre: Tensor, post: Tensor) -> Tensor:
    before = synapses.weight.clone()
    synapses.observe(pre, post)
    synapses.update()
    return synapses.weight - before


def test_stiffness_holds_back_what_would_weaken_and_nothing_else(spikes) -> None:
    pre, post = spikes()
    free, stiff = (changes(build(Pair(), rate=0.1, cap=0.9, stiffness=m), pre, post) for m in (0.0, 2.0))
    weight = build(Pair()).weight
    weakened = free < 0
    assert weakened.any()
    assert (~weakened).any()
    torch.testing.assert_close(stiff[~weakened], free[~weakened])
    expected = free * (1 - (2 * weight).tanh() ** 2)
    torch.testing.assert_close(stiff[weakened], expected[weakened], rtol=1e-3, atol=1e-7)


def test_soft_bounds_slow_down_what_comes_near_them(spikes) -> None:
    pre, post = spikes()
    synapses = build(Pair(), rate=0.1, cap=0.9, w_max=2.0, softness=0.5)
    level, sums = synapses.weight / 2, Pair().sums(pre, post)
    expected = 0.1 / 200 * (sums.potentiation * (1 - level) ** 0.5 - sums.depression * level**0.5)
    torch.testing.assert_close(changes(synapses, pre, post), expected, rtol=1e-3, atol=1e-7)


@EVERY_RULE
def test_a_discarded_window_leaves_everything_as_it_was(name: str, spikes) -> None:
    synapses = build(RULES[name](), learn_rates=True)
    synapses.observe(*spikes(seed=1))
    synapses.update()
    before = everything(synapses)
    synapses.observe(*spikes(seed=2))
    assert not same(everything(synapses), before)
    synapses.discard()
    assert same(everything(synapses), before)


def test_nothing_observed_is_no_update() -> None:
    synapses = build(Homeostatic())
    before = everything(synapses)
    assert synapses.update() is None
    assert same(everything(synapses), before)


def test_an_update_is_made_once(spikes) -> None:
    synapses = build(Pair())
    synapses.observe(*spikes())
    assert synapses.update() is not None
    assert synapses.update() is None


@EVERY_RULE
def test_no_precision_changes_the_weights(name: str, spikes) -> None:  # C99
    plain, mixed = build(RULES[name](), learn_rates=True), build(RULES[name](), learn_rates=True)
    for seed in range(3):
        pre, post = spikes(seed)
        plain.observe(pre, post)
        plain.update()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed.observe(pre.bfloat16(), post.bool())
            mixed.update()
        assert same(everything(plain), everything(mixed))


@EVERY_RULE
def test_no_update_makes_an_autograd_graph(name: str, spikes) -> None:  # C99
    pre, post = (part.requires_grad_() for part in spikes())
    synapses = build(RULES[name](), learn_rates=True)
    synapses.observe(pre, 2 * post)
    synapses.update()
    assert not any(tensor.requires_grad for tensor in (*synapses.buffers(), *synapses.pending()))
    assert "weight" not in dict(synapses.named_parameters())


def test_spikes_that_are_not_finite_are_refused_and_change_nothing(spikes) -> None:
    pre, post = spikes()
    synapses = build(Homeostatic())
    before = [value.clone() for value in synapses.state_dict().values()]
    synapses.observe(pre * math.nan, post)
    with pytest.raises(ValueError, match="spikes must be finite"):
        synapses.update()
    assert same(list(synapses.state_dict().values()), before)


@EVERY_RULE
def test_training_goes_on_from_its_state(name: str, spikes) -> None:
    first, second = build(RULES[name](), learn_rates=True), build(RULES[name](), seed=1, learn_rates=True)
    first.observe(*spikes(1))
    first.update()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert not any(name.startswith("pending") for name in first.state_dict())
    for synapses in (first, second):
        synapses.observe(*spikes(2))
        synapses.update()
    assert same(everything(first), everything(second))


def loss(synapses: PlasticSynapses, pre: Tensor, target: Tensor) -> Tensor:
    return (synapses(pre) - target).square().sum()


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        (Pair(), {}),
        (Pair(), {"cap": 1e-3}),
        (Pair(), {"rate": 1000.0, "cap": 0.9}),  # some synapses reach a bound
        (Pair(), {"softness": 0.5, "stiffness": 2.0}),
        (Homeostatic(strength=1.0), {"rate": 10.0, "cap": 0.9}),
        (BCM(), {"rate": 300.0, "cap": 0.02}),
    ],
)
def test_the_gradient_of_a_rate_is_what_another_rate_would_have_made_of_the_loss(
    rule: Rule, settings: dict[str, float], spikes
) -> None:
    pre, post = (part.double() for part in spikes())
    heldout, target = spikes(seed=1)[0].double(), torch.randn(4, 50, 3, dtype=torch.float64)
    synapses = build(rule, **settings, learn_rates=True).double()
    with torch.no_grad():
        synapses.log_rates.copy_(torch.linspace(0.02, -0.01, len(rule.terms)))
    synapses.observe(pre, post)

    def after(shift: Tensor) -> float:
        other = copy.deepcopy(synapses)
        with torch.no_grad():
            other.log_rates += shift
            other.update()
            return loss(other, heldout, target).item()

    shifts = 1e-6 * torch.eye(len(rule.terms), dtype=torch.float64)
    expected = [(after(shift) - after(-shift)) / 2e-6 for shift in shifts]
    synapses.update()
    if settings.get("rate") == 1000.0:
        assert ((synapses.weight == 0) | (synapses.weight == 1)).any()
    with torch.no_grad():
        plain = synapses(heldout)
    assert torch.equal(synapses(heldout), plain)
    loss(synapses, heldout, target).backward()
    assert max(map(abs, expected)) > 1e-4
    torch.testing.assert_close(
        synapses.log_rates.grad, torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(("wanted", "rises"), [(1.0, "rate_potentiation"), (0.0, "rate_depression")])
def test_the_rate_that_helps_rises_and_the_one_that_hurts_falls(wanted: float, rises: str, spikes) -> None:
    synapses = build(Pair(), learn_rates=True)
    optimizer = torch.optim.Adam([synapses.log_rates], lr=0.05)
    for step in range(30):
        pre, post = spikes(seed=step)
        target = wanted * pre.sum(-1, keepdim=True) / math.sqrt(5)  # what weights that are all `wanted` would pass on
        optimizer.zero_grad()
        loss(synapses, pre, target).backward()
        optimizer.step()
        synapses.observe(pre, post)
        rates = synapses.update()
    falls = {"rate_potentiation": "rate_depression", "rate_depression": "rate_potentiation"}[rises]
    assert rates[rises] > 2 * 20
    assert rates[falls] < 20 / 2


def test_rates_that_are_not_learned_are_no_parameters() -> None:
    assert [name for name, _ in build(Pair()).named_parameters()] == ["scale"]
    assert [name for name, _ in build(Pair(), learn_rates=True).named_parameters()] == ["scale", "log_rates"]


def test_learned_rates_stay_within_a_factor_of_ten(spikes) -> None:
    for extreme, rate in ((-100.0, 2.0), (100.0, 200.0)):
        synapses = build(Pair(), learn_rates=True)
        torch.nn.init.constant_(synapses.log_rates, extreme)
        synapses.observe(*spikes())
        assert synapses.update()["rate_depression"] == pytest.approx(rate)


@pytest.mark.parametrize("name", ["pre", "post", "rate", "w_max", "softness", "stiffness", "cap"])
def test_arguments_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be"):
        PlasticSynapses(**({"pre": 5, "post": 3, "rule": Pair()} | {name: -1}))


def test_spikes_of_other_shapes_are_refused(spikes) -> None:
    pre, post = spikes()
    for wrong in ((post, pre), (pre[:, 1:], post), (pre[0], post[0])):
        with pytest.raises(ValueError, match="spikes must have the shapes"):
            build(Pair()).observe(*wrong)
