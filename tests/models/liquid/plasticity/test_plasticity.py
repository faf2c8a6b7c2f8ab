"""Rules: what a few spikes say and the sums of many. Plastic synapses: when weights change and by how much."""

import copy
import math
from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from searchlight.models.liquid.plasticity import (
    BCM,
    RULES,
    Homeostatic,
    Pair,
    PlasticSynapses,
    Rule,
    Triplet,
    compute_traces,
)


def spikes(seed: int = 0, batch: int = 4) -> tuple[Tensor, Tensor]:
    """Independent spikes of two populations, shapes (batch, 50, 5) and (batch, 50, 3)."""
    generator = torch.Generator().manual_seed(seed)
    return tuple((torch.rand(batch, 50, n, generator=generator) < 0.2).float() for n in (5, 3))


def step_by_step(rule: Rule, pre: Tensor, post: Tensor) -> tuple[Tensor, Tensor]:
    """The rules as the papers write them: one synapse after another, one step after another."""
    potentiation = torch.zeros(post.shape[-1], pre.shape[-1], dtype=pre.dtype)
    depression = torch.zeros_like(potentiation)
    for b, q, p in product(range(len(pre)), range(post.shape[-1]), range(pre.shape[-1])):
        r1 = r2 = o1 = o2 = ones = 0.0
        for s_p, s_q in zip(pre[b, :, p].tolist(), post[b, :, q].tolist(), strict=True):
            match rule:
                case Pair():
                    taus = (rule.tau_plus, 1.0, rule.tau_minus, 1.0)
                    up, down = s_q * r1 * rule.a_plus, s_p * o1 * rule.a_minus
                case Triplet():
                    taus = (rule.tau_plus, rule.tau_x, rule.tau_minus, rule.tau_y)
                    up = s_q * r1 * (rule.a2_plus + rule.a3_plus * o2)
                    down = s_p * o1 * (rule.a2_minus + rule.a3_minus * r2)
                case BCM():
                    taus = (rule.tau, 1.0, rule.tau, 1.0)
                    x, y = r1 / (ones or 1), o1 / (ones or 1)
                    up, down = rule.amplitude * x * y * y, rule.amplitude * x * y
            potentiation[q, p] += up
            depression[q, p] += down
            r1, r2 = math.exp(-1 / taus[0]) * (r1 + s_p), math.exp(-1 / taus[1]) * (r2 + s_p)
            ones = math.exp(-1 / taus[0]) * (ones + 1)
            o1, o2 = math.exp(-1 / taus[2]) * (o1 + s_q), math.exp(-1 / taus[3]) * (o2 + s_q)
    return potentiation, depression


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=6)
@given(seed=st.integers(0, 1000), steps=st.integers(1, 30), rate=st.floats(0.05, 0.9))
def test_whole_sequences_sum_what_their_steps_say(name: str, seed: int, steps: int, rate: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    pre, post = ((torch.rand(2, steps, n, generator=generator) < rate).float() for n in (3, 2))
    before, rule = pre.clone(), RULES[name]()
    found, expected = rule.compute_sums(pre, post), step_by_step(rule, pre.double(), post.double())
    torch.testing.assert_close(found[:2], expected, rtol=1e-4, atol=1e-6, check_dtype=False)
    assert torch.equal(pre, before)


def test_bcm_changes_nothing_where_a_rate_is_its_threshold() -> None:
    rule = BCM(target=0.1)
    x = torch.full((1, 4), 0.2)
    for y, sign in ((0.05, -1), (0.1, 0), (0.2, 1)):
        rate, threshold = torch.tensor([[y]]), torch.tensor([0.1])
        up, down = rule.compute_directions(rate**2 * x, rate * x, threshold)
        assert torch.equal((up + down).sign(), torch.full((1, 4), float(sign)))


def test_the_threshold_of_bcm_follows_the_squared_rate() -> None:
    rule = BCM(target=0.1, tau_theta=200)
    for y, threshold in ((0.1, 0.1), (0.2, 0.4)):  # y^2 / target
        state = torch.tensor(rule.start(1))
        for _ in range(50):
            state = rule.remember(state, torch.tensor([y**2 / 0.1]), steps=torch.tensor(50.0))
        torch.testing.assert_close(state, torch.tensor([threshold]))


def closed_loop(rule: Rule, start: float, rate: float, updates: int = 150) -> Tensor:
    """Rates of leaky neurons behind plastic synapses, under Poisson spikes: a row for each of the last updates."""
    torch.manual_seed(0)
    synapses = PlasticSynapses(20, 4, rule, rate=rate)
    synapses.weight.fill_(start)
    torch.nn.init.constant_(synapses.scale, 0.5)
    drive = torch.tensor([0.0, 0.5, 1.0, -0.5])  # of other synapses, which no rule changes
    rates = []
    for _ in range(updates):
        pre = (torch.rand(8, 50, 20) < 0.1).float()
        with torch.no_grad():
            current = synapses(pre) + (drive if isinstance(rule, Homeostatic) else 0)
        post, potential = torch.zeros(8, 50, 4), torch.zeros(8, 4)
        for t in range(50):
            potential = 0.9 * potential + current[:, t]
            post[:, t] = (potential >= 1).float()
            potential = potential - post[:, t]
        synapses.observe(pre, post)
        synapses.update()
        rates.append(post.mean((0, 1)))
    return torch.stack(rates[-50:])


@pytest.mark.parametrize(
    ("rule", "rate", "tolerance"),
    [(Homeostatic(target=0.2), 1, 0.1), (BCM(target=0.2), 3, 0.15)],
    ids=["homeostatic", "bcm"],
)
def test_the_rate_settles_at_its_target(rule: Rule, rate: float, tolerance: float) -> None:
    for start in (0.2, 0.9):
        rates = closed_loop(rule, start, rate)
        torch.testing.assert_close(rates.mean(0), torch.full((4,), 0.2), rtol=tolerance, atol=0)


@pytest.mark.parametrize(
    ("rule", "constants"),
    [
        (Pair, {"tau_plus": 0.0}),
        (Triplet, {"a3_plus": -1.0}),
        (BCM, {"target": 0.0}),
        (Homeostatic, {"strength": math.nan}),
    ],
)
def test_constants_out_of_range_are_refused(rule: type[Rule], constants: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(constants))} must be"):
        rule(**constants)
    with pytest.raises(ValueError, match="tau must be above 0"):
        compute_traces(torch.zeros(1, 2, 1), 0.0)


def test_bcm_remembers_a_long_sequence_like_short_ones() -> None:
    rule = BCM()
    start, activity = torch.tensor(rule.start(2)), torch.tensor([0.0, 0.7])
    twice = rule.remember(
        rule.remember(start, activity, steps=torch.tensor(150.0)), activity, steps=torch.tensor(150.0)
    )
    torch.testing.assert_close(twice, rule.remember(start, activity, steps=torch.tensor(300.0)))
    assert (twice - activity).abs().max() < (start - activity).abs().max()


EVERY_RULE = pytest.mark.parametrize("name", RULES)


def build(rule: Rule, seed: int = 0, **settings: Any) -> PlasticSynapses:
    torch.manual_seed(seed)
    return PlasticSynapses(5, 3, rule, **({"rate": 20.0} | settings))


def everything(synapses: PlasticSynapses) -> list[Tensor]:
    return [value.clone() for value in (*synapses.state_dict().values(), *synapses.get_pending())]


def same(some: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def test_an_update_is_what_the_rule_says_per_sample_and_step() -> None:
    synapses = build(Pair(), rate=2.0)
    before, (pre, post) = synapses.weight.clone(), spikes()
    torch.testing.assert_close(synapses(pre), (pre @ before.T) / math.sqrt(5))
    assert synapses.update() is None  # nothing was observed
    assert torch.equal(synapses.weight, before)
    synapses.observe(pre, post)
    assert synapses.update() is not None
    assert synapses.update() is None
    sums = Pair().compute_sums(pre, post)
    expected = (before + 2 * (sums.potentiation - sums.depression) / (4 * 50)).clamp(0, 1)
    torch.testing.assert_close(synapses.weight, expected)


@EVERY_RULE
def test_micro_batches_and_ranks_change_nothing(name: str) -> None:
    pre, post = spikes(batch=6)
    whole, cut, idle, busy = (build(RULES[name](), learn_rates=True) for _ in range(4))
    for rows in (slice(0, 1), slice(1, 4), slice(4, 6)):
        cut.observe(pre[rows], post[rows])
    for synapses in (whole, busy):
        synapses.observe(pre, post)
    for mine, theirs in zip(idle.get_pending(), busy.get_pending(), strict=True):
        mine += theirs
    expected = whole.update()
    for synapses in (cut, idle):
        assert synapses.update() == pytest.approx(expected, rel=1e-4)
        torch.testing.assert_close(synapses.weight, whole.weight)
        torch.testing.assert_close(synapses.state, whole.state)


@EVERY_RULE
def test_silence_excites_neurons_under_homeostasis_alone(name: str) -> None:
    synapses = build(RULES[name](), rate=1.0)
    before, (pre, _) = synapses.weight.clone(), spikes()
    current = synapses(pre).detach()
    synapses.observe(torch.zeros(2, 20, 5), torch.zeros(2, 20, 3))
    assert synapses.update()["change"] == 0
    assert torch.equal(synapses.weight, before)
    excited = 0.2 * 0.1 if name == "homeostatic" else 0.0  # strength * (target - 0)
    torch.testing.assert_close(synapses(pre).detach(), current + excited)


@pytest.mark.parametrize("at", [0.001, 1.0])
def test_weights_leave_their_bounds_with_rates_learned(at: float) -> None:
    synapses = build(Pair(), rate=1.0, softness=1.0, learn_rates=True)
    synapses.weight.fill_(at)
    for seed in range(40):
        synapses.observe(*spikes(seed))
        figures = synapses.update()
    assert figures["bound"] < 0.1
    loss(synapses, spikes()[0], torch.ones(4, 50, 3)).backward()
    assert (synapses.log_rates.grad != 0).all()


@settings(max_examples=25)
@given(
    name=st.sampled_from(sorted(RULES)),
    seed=st.integers(0, 1000),
    cap=st.floats(0.01, 0.99),
    options=st.fixed_dictionaries(
        {
            "rate": st.floats(0, 1e4),
            "w_max": st.floats(0.1, 10),
            "softness": st.floats(0, 2),
            "stiffness": st.floats(0, 5),
        }
    ),
)
def test_weights_stay_in_bounds_and_updates_under_the_cap(name, seed, cap, options) -> None:
    generator = torch.Generator().manual_seed(seed)
    synapses = build(RULES[name](), seed, cap=cap, learn_rates=True, **options)
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


def changes(synapses: PlasticSynapses, pre: Tensor, post: Tensor) -> Tensor:
    before = synapses.weight.clone()
    synapses.observe(pre, post)
    synapses.update()
    return synapses.weight - before


def test_stiffness_holds_back_weakening_alone() -> None:
    free, stiff = (changes(build(Pair(), rate=0.1, cap=0.9, stiffness=m), *spikes()) for m in (0.0, 2.0))
    weakened = free < 0
    assert 0 < weakened.sum() < weakened.numel()
    expected = torch.where(weakened, free * (1 - (2 * build(Pair()).weight).tanh() ** 2), free)
    torch.testing.assert_close(stiff, expected, rtol=1e-3, atol=1e-7)


def test_soft_bounds_slow_down_what_comes_near_them() -> None:
    pre, post = spikes()
    synapses = build(Pair(), rate=0.1, cap=0.9, w_max=2.0, softness=0.5)
    level, sums = synapses.weight / 2, Pair().compute_sums(pre, post)
    expected = 0.1 / 200 * (sums.potentiation * (1 - level) ** 0.5 - sums.depression * level**0.5)
    torch.testing.assert_close(changes(synapses, pre, post), expected, rtol=1e-3, atol=1e-7)


@EVERY_RULE
def test_updates_are_fp32_and_have_no_graph(name: str) -> None:
    plain, mixed = build(RULES[name](), learn_rates=True), build(RULES[name](), learn_rates=True)
    for seed in range(3):
        pre, post = spikes(seed)
        plain.observe(pre.requires_grad_(), post)
        plain.update()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed.observe(pre.bfloat16(), post.bool())
            mixed.update()
        assert same(everything(plain), everything(mixed))
    assert not any(tensor.requires_grad for tensor in (*plain.buffers(), *plain.get_pending()))
    assert [name for name, _ in plain.named_parameters()] == ["scale", "log_rates"]
    assert [name for name, _ in build(RULES[name]()).named_parameters()] == ["scale"]


def test_spikes_that_are_not_finite_are_refused() -> None:
    pre, post = spikes()
    synapses = build(Homeostatic())
    before = copy.deepcopy(synapses.state_dict())
    synapses.observe(pre * math.nan, post)
    with pytest.raises(ValueError, match="spikes must be finite"):
        synapses.update()
    assert same(synapses.state_dict().values(), before.values())


@EVERY_RULE
def test_training_goes_on_from_its_state_or_a_discarded_window(name: str) -> None:
    first, second = build(RULES[name](), learn_rates=True), build(RULES[name](), seed=1, learn_rates=True)
    first.observe(*spikes(1))
    first.update()
    before = everything(first)
    first.observe(*spikes(3))
    assert not same(everything(first), before)
    first.discard()
    assert same(everything(first), before)
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
        (Homeostatic(), {"rate": 10.0, "cap": 0.9}),
        (BCM(), {"rate": 300.0, "cap": 0.02}),
    ],
    ids=["plain", "capped", "bounded", "soft and stiff", "homeostatic", "bcm"],
)
def test_the_gradient_of_a_rate_is_its_finite_difference(rule: Rule, settings: dict[str, float]) -> None:
    pre, post = (part.double() for part in spikes())
    heldout, target = spikes(seed=1)[0].double(), torch.randn(4, 50, 3, dtype=torch.float64)
    synapses = build(rule, **settings, learn_rates=True).double()
    with torch.no_grad():
        synapses.log_rates.copy_(torch.linspace(0.02, -0.01, len(rule.terms)))
    synapses.observe(pre, post)

    @torch.no_grad()
    def after(shift: Tensor) -> Tensor:
        other = copy.deepcopy(synapses)
        other.log_rates += shift
        other.update()
        return loss(other, heldout, target)

    shifts = 1e-6 * torch.eye(len(rule.terms), dtype=torch.float64)
    expected = torch.stack([(after(shift) - after(-shift)) / 2e-6 for shift in shifts])
    synapses.update()
    if settings.get("rate") == 1000.0:
        assert ((synapses.weight == 0) | (synapses.weight == 1)).any()
    with torch.no_grad():
        plain = synapses(heldout)
    assert torch.equal(synapses(heldout), plain)
    loss(synapses, heldout, target).backward()
    assert expected.abs().max() > 1e-4
    torch.testing.assert_close(synapses.log_rates.grad, expected, rtol=1e-4, atol=1e-6)


def test_learned_rates_stay_within_a_factor_of_ten() -> None:
    for extreme, rate in ((-100.0, 2.0), (100.0, 200.0)):
        synapses = build(Pair(), learn_rates=True)
        torch.nn.init.constant_(synapses.log_rates, extreme)
        synapses.observe(*spikes())
        assert synapses.update()["rate_depression"] == pytest.approx(rate)


def test_shapes_that_do_not_fit_are_refused() -> None:
    pre, post = spikes()
    for wrong in ((post, pre), (pre[:, 1:], post), (pre[0], post[0])):
        with pytest.raises(ValueError, match="spikes must have the shapes"):
            build(Pair()).observe(*wrong)
