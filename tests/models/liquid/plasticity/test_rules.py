"""Rules: the sign and size of what a few spikes say, and the sums of many."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.liquid.plasticity import BCM, RULES, Homeostatic, Pair, PlasticSynapses, Rule, Sums, Triplet


def train(steps: int, *at: int) -> Tensor:
    """Spikes of a single neuron, float64 of shape (1, steps, 1)."""
    spikes = torch.zeros(1, steps, 1, dtype=torch.float64)
    spikes[0, list(at)] = 1
    return spikes


def net(rule: Rule, pre: Tensor, post: Tensor) -> float:
    sums = rule.sums(pre, post)
    return (sums.potentiation - sums.depression).item()


@pytest.mark.parametrize("rule", [Pair(), Homeostatic(), Triplet()])
@pytest.mark.parametrize(
    ("pre", "post", "expected"),
    [
        (0, 5, 0.005 * math.exp(-5 / 20)),
        (5, 0, -0.00525 * math.exp(-5 / 20)),
        (0, 1, 0.005 * math.exp(-1 / 20)),
        (1, 0, -0.00525 * math.exp(-1 / 20)),
        (3, 3, 0.0),
    ],
)
def test_two_spikes_have_the_sign_of_their_order(rule: Rule, pre: int, post: int, expected: float) -> None:  # C98
    assert net(rule, train(8, pre), train(8, post)) == pytest.approx(expected, rel=1e-12)


def test_strengthening_and_weakening_come_of_different_pairs() -> None:
    sums = Pair().sums(train(8, 0), train(8, 5))
    assert sums.potentiation > 0
    assert sums.depression == 0


def test_triplets_without_their_own_terms_are_pairs(spikes) -> None:  # C98
    pre, post = spikes()
    found = Triplet(a3_plus=0, a3_minus=0).sums(pre, post)
    expected = Pair().sums(pre, post)
    torch.testing.assert_close(found.potentiation, expected.potentiation)
    torch.testing.assert_close(found.depression, expected.depression)


def test_a_post_spike_before_a_pair_strengthens_it_further() -> None:
    rule = Triplet(
        a2_plus=0.01, a3_plus=0.2, a2_minus=0.03, a3_minus=0.4, tau_plus=10, tau_minus=20, tau_x=50, tau_y=80
    )
    post_pre_post = net(rule, train(12, 4), train(12, 1, 9))
    strengthened = math.exp(-5 / 10) * (0.01 + 0.2 * math.exp(-8 / 80))
    assert post_pre_post == pytest.approx(strengthened - 0.03 * math.exp(-3 / 20), rel=1e-12)


def test_a_pre_spike_before_a_pair_weakens_it_further() -> None:
    rule = Triplet(
        a2_plus=0.01, a3_plus=0.2, a2_minus=0.03, a3_minus=0.4, tau_plus=10, tau_minus=20, tau_x=50, tau_y=80
    )
    pre_post_pre = net(rule, train(12, 1, 9), train(12, 4))
    weakened = math.exp(-5 / 20) * (0.03 + 0.4 * math.exp(-8 / 50))
    assert pre_post_pre == pytest.approx(0.01 * math.exp(-3 / 10) - weakened, rel=1e-12)


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
@settings(deadline=None, derandomize=True, max_examples=6)
@given(seed=st.integers(0, 1000), steps=st.integers(1, 30), rate=st.floats(0.05, 0.9))
def test_whole_sequences_say_what_their_steps_say(name: str, seed: int, steps: int, rate: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    pre, post = ((torch.rand(2, steps, n, generator=generator) < rate).float() for n in (3, 2))
    rule = RULES[name]()
    found, expected = rule.sums(pre, post), step_by_step(rule, pre.double(), post.double())
    torch.testing.assert_close(found[:2], expected, rtol=1e-4, atol=1e-6, check_dtype=False)


@pytest.mark.parametrize("name", RULES)
def test_silence_says_nothing(name: str, spikes) -> None:
    pre, post = spikes()
    for silent in ((pre, torch.zeros_like(post)), (torch.zeros_like(pre), post)):
        sums = RULES[name]().sums(*silent)
        assert not sums.potentiation.any()
        assert not sums.depression.any()


def test_bcm_reads_the_rate_of_steady_spikes() -> None:
    rates = BCM(tau=20).rates(torch.full((1, 50, 1), 0.3))
    torch.testing.assert_close(rates[0, 1:], torch.full((49, 1), 0.3))
    assert rates[0, 0] == 0


def test_bcm_changes_nothing_where_a_rate_is_its_threshold() -> None:  # C98
    rule = BCM(target=0.1)
    x, weight = torch.full((1, 4), 0.2), torch.full((1, 4), 0.5)
    for y, sign in ((0.05, -1), (0.1, 0), (0.2, 1)):
        rate, threshold = torch.tensor([[y]]), torch.tensor([0.1])
        up, down = rule.directions(rate**2 * x, rate * x, threshold, weight)
        assert torch.equal((up + down).sign(), torch.full((1, 4), float(sign)))


def test_the_threshold_of_bcm_ends_at_the_target_for_a_rate_that_is_there_and_above_it_for_one_that_is_above() -> None:
    rule = BCM(target=0.1, tau_theta=200)
    for y, threshold in ((0.1, 0.1), (0.2, 0.4)):  # y^2 / target
        state = torch.tensor(rule.start(1))
        for _ in range(50):
            state = rule.remember(state, torch.tensor([y**2 / 0.1]), steps=50)
        torch.testing.assert_close(state, torch.tensor([threshold]))


def closed_loop(rule: Rule, start: float, rate: float, updates: int = 150) -> Tensor:
    """Rates of leaky neurons behind plastic synapses, under Poisson spikes: a row for each of the last updates."""
    torch.manual_seed(0)
    synapses = PlasticSynapses(20, 4, rule, rate=rate)
    synapses.weight.fill_(start)
    torch.nn.init.constant_(synapses.scale, 0.5)
    rates = []
    for _ in range(updates):
        pre = (torch.rand(8, 50, 20) < 0.1).float()
        with torch.no_grad():
            current = synapses(pre)
        post, potential = torch.zeros(8, 50, 4), torch.zeros(8, 4)
        for t in range(50):
            potential = 0.9 * potential + current[:, t]
            post[:, t] = (potential >= 1).float()
            potential = potential - post[:, t]
        synapses.observe(pre, post)
        synapses.update()
        rates.append(post.mean((0, 1)))
    return torch.stack(rates[-50:])


@pytest.mark.parametrize("start", [0.05, 0.9])
def test_homeostasis_brings_the_rate_to_its_target(start: float) -> None:
    rates = closed_loop(Homeostatic(target=0.2, strength=0.5, tau_rate=200), start, rate=1)
    torch.testing.assert_close(rates.mean(0), torch.full((4,), 0.2), rtol=0.1, atol=0)


@pytest.mark.parametrize("start", [0.2, 0.9])
def test_under_bcm_the_rate_settles(start: float) -> None:
    rates = closed_loop(BCM(target=0.2), start, rate=3)
    torch.testing.assert_close(rates.mean(0), torch.full((4,), 0.2), rtol=0.15, atol=0)


def test_sums_of_rules_without_a_state_have_no_activity(spikes) -> None:
    assert isinstance(Pair().sums(*spikes()), Sums)
    assert Pair().sums(*spikes()).activity.numel() == 0 == len(Pair().start(3))
    assert Homeostatic().sums(*spikes()).activity.shape == (3,)


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


@pytest.mark.parametrize("rule", [Homeostatic(), BCM()])
def test_a_long_sequence_is_remembered_like_short_ones_in_a_row(rule: Rule) -> None:
    start, activity = torch.tensor(rule.start(2)), torch.tensor([0.0, 0.7])
    twice = rule.remember(rule.remember(start, activity, steps=150), activity, steps=150)
    torch.testing.assert_close(twice, rule.remember(start, activity, steps=300))
    assert (twice - activity).abs().max() < (start - activity).abs().max()
