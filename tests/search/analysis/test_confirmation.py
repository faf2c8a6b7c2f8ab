"""What confirming runs show: of finalists and defaults with known true values."""

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.search.analysis.confirmation import (
    CHOSEN_FROM,
    SHOWN_FROM,
    _format_estimate,
    estimate_confirmation,
)
from searchlight.search.analysis.confirmed_best import INTERVAL, build_confirmation_rows
from tests.search.objectives import VAL_LOSS, VAL_SCORE

FINALISTS = (4, 9, 11)


def run_all(means, seeds=5, noise=1.0, shared=0.0, seed=0):
    """Return values by config and seed around `means`, with an effect of the seed that all configs share."""
    draw = random.Random(seed)
    effects = [draw.gauss(0, shared) for _ in range(seeds)]
    return {
        config: {100 + index: mean + effect + draw.gauss(0, noise) for index, effect in enumerate(effects)}
        for config, mean in means.items()
    }


def config_of(found, trial):
    return next(config for config in found.configs if config.trial == trial)


@pytest.mark.parametrize(
    ("value", "interval", "told"),
    [
        (1234.567, (1234.51, 1234.62), ("1234.57", "90 % interval 1234.51 to 1234.62")),
        (0.0193, (0.0041, 0.0352), ("0.019", "90 % interval 0.004 to 0.035")),
        (123456.0, (120000.0, 130000.0), ("1.23e+05", "90 % interval 1.2e+05 to 1.3e+05")),
        (0.0, (0.0, 0.0), ("0", "90 % interval 0 to 0")),
    ],
)
def test_interval_has_two_digits_of_its_width(value, interval, told):
    assert _format_estimate(value, interval) == told


def test_clearly_better_finalist_is_chosen_and_shown():
    found = estimate_confirmation(run_all({4: 10.0, 9: 20.0, 11: 12.0, None: 10.0}), VAL_SCORE)
    assert [config.trial for config in found.configs][:2] == [9, 11]
    best = config_of(found, 9)
    assert found.chosen == 9
    assert best.probability_best > 0.99
    assert best.probability_beats_defaults > 0.99
    assert best.interval[0] < 20 < best.interval[1]
    assert best.difference_interval[0] < 10 < best.difference_interval[1]
    assert found.statement.startswith("trial 9 beats the defaults by ")
    assert found.statement.endswith(", 5 seeds)")


def test_no_finalist_is_chosen_if_the_defaults_are_better():
    found = estimate_confirmation(run_all({4: 10.0, 9: 10.0, None: 15.0}), VAL_SCORE)
    assert found.configs[0].trial is None
    assert found.chosen is None
    assert found.statement == "no finalist is shown to beat the defaults; keep them"


def test_statement_says_if_a_better_finalist_is_not_shown():
    values = {4: {1: 0.90, 2: 0.93, 3: 0.91}, None: {1: 0.89, 2: 0.91, 3: 0.91}}
    found = estimate_confirmation(values, VAL_SCORE)
    assert CHOSEN_FROM <= config_of(found, 4).probability_beats_defaults < SHOWN_FROM
    assert found.chosen == 4
    assert found.statement.startswith("trial 4 is probably better than the defaults, by 0.00")
    assert found.statement.endswith(", 3 seeds), but this is not shown")


def test_best_finalist_is_chosen_without_defaults():
    found = estimate_confirmation(run_all({4: 3.0, 9: 1.0}, seeds=4), VAL_SCORE)
    assert found.chosen == 4
    assert found.statement.startswith("trial 4 is the best of 2 finalists with probability ")
    assert found.statement.endswith(", 4 seeds)")
    assert all(config.difference is None for config in found.configs)
    assert all(config.probability_beats_defaults is None for config in found.configs)
    assert " estimated (90 % interval " in found.statement
    heads = ["", "seeds", "estimated val/score", INTERVAL, "P(best)"]
    assert build_confirmation_rows(found)[0] == heads, "and no comparison with the defaults"


@pytest.mark.parametrize(
    "values",
    [
        {},
        {4: {1: 0.5, 2: 0.6}},
        {4: {1: 0.5, 2: 0.6}, None: {}},
        {4: {1: 0.5}, 9: {1: 0.6}, None: {1: 0.4}},
    ],
)
def test_too_few_runs_have_no_answer(values):
    assert estimate_confirmation(values, VAL_SCORE) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_value_that_is_not_finite_is_refused(value):
    with pytest.raises(ValueError, match="must be finite"):
        estimate_confirmation({4: {1: value, 2: 0.1}, None: {1: 0.2}}, VAL_SCORE)


@settings(max_examples=20)
@given(st.sampled_from([0.0, 0.1, 1e-300, -3e20]), st.booleans())
def test_equal_values_have_no_noise_and_keep_the_defaults(value, with_defaults):
    last = None if with_defaults else 11
    values = {4: {1: value, 2: value}, 9: {1: value}, last: {1: value, 2: value}}
    found = estimate_confirmation(values, VAL_LOSS)
    assert found.noise == found.detectable_difference == 0
    assert all(config.mean == value and config.interval == (value, value) for config in found.configs)
    assert all(config.probability_best == pytest.approx(1 / 3) for config in found.configs)
    assert found.chosen == (None if with_defaults else 4)


values_of_runs = st.dictionaries(
    st.sampled_from([None, *FINALISTS]),
    st.dictionaries(st.integers(0, 6), st.floats(-1.0, 1.0).map(lambda value: round(value, 3)), max_size=6),
    min_size=2,
)


@settings(max_examples=40)
@given(values_of_runs)
def test_any_runs_have_a_coherent_answer(values):
    found = estimate_confirmation(values, VAL_SCORE)
    runs = {config: own for config, own in values.items() if own}
    assert (found is None) == (len(runs) < 2 or all(len(own) < 2 for own in runs.values()))
    if found is None:
        return
    assert {config.trial: config.values for config in found.configs} == runs
    means = [config.mean for config in found.configs]
    assert means == sorted(means, reverse=True)
    assert sum(config.probability_best for config in found.configs) == pytest.approx(1.0)
    assert all(config.interval[0] <= config.interval[1] for config in found.configs)
    for config in found.configs:
        if config.trial is None or None not in runs:
            assert config.difference is config.difference_interval is config.probability_beats_defaults is None
        else:
            low, high = config.difference_interval
            assert low <= high
            assert config.difference == pytest.approx(config.mean - config_of(found, None).mean, abs=1e-9)
            assert 0 <= config.probability_beats_defaults <= 1
    assert found.chosen in {*runs, None}
    assert found.statement


@settings(max_examples=15)
@given(st.integers(0, 2**16))
def test_losses_have_the_mirrored_answer_of_scores(seed):
    values = run_all({4: 1.0, 9: 0.0, None: 0.5}, seeds=3, seed=seed)
    score = estimate_confirmation(values, VAL_SCORE)
    mirrored = {config: {index: -value for index, value in own.items()} for config, own in values.items()}
    loss = estimate_confirmation(mirrored, VAL_LOSS)
    assert (loss.chosen, loss.noise) == (score.chosen, score.noise)
    for one, other in zip(score.configs, loss.configs, strict=True):
        assert other.mean == pytest.approx(-one.mean)
        assert other.interval == pytest.approx((-one.interval[1], -one.interval[0]))
        kept = ("trial", "difference", "difference_interval", "probability_best", "probability_beats_defaults")
        assert [getattr(other, name) for name in kept] == [getattr(one, name) for name in kept]


@settings(max_examples=15)
@given(st.integers(0, 2**16), st.floats(0.01, 100.0), st.floats(-100.0, 100.0))
def test_unit_and_zero_of_the_values_change_no_decision(seed, scale, shift):
    values = run_all({4: 1.0, 9: 0.0, None: 0.5}, seeds=3, seed=seed)
    moved = {config: {index: shift + scale * value for index, value in own.items()} for config, own in values.items()}
    one, other = estimate_confirmation(values, VAL_SCORE), estimate_confirmation(moved, VAL_SCORE)
    assert other.noise == pytest.approx(scale * one.noise, rel=1e-2)
    for config in one.configs:
        same = config_of(other, config.trial)
        assert same.mean == pytest.approx(shift + scale * config.mean, rel=1e-6, abs=1e-6 * scale)
        assert same.probability_best == pytest.approx(config.probability_best, abs=0.02)


@pytest.mark.parametrize("scale", [2.0**-1000, 2.0**1000])
def test_values_whose_squares_are_no_floats_are_compared(scale):
    values = run_all({4: 1.0, 9: 0.0, None: 0.5}, seeds=3)
    scaled = {config: {index: scale * value for index, value in own.items()} for config, own in values.items()}
    one, other = estimate_confirmation(values, VAL_SCORE), estimate_confirmation(scaled, VAL_SCORE)
    assert (other.noise, other.chosen) == (scale * one.noise, one.chosen)
    assert [config.mean for config in other.configs] == [scale * config.mean for config in one.configs]
    assert other.statement


def test_order_of_configs_and_seeds_changes_nothing():
    values = run_all({4: 1.0, 9: 0.0, None: 0.5})
    turned = {config: dict(reversed(own.items())) for config, own in reversed(values.items())}
    assert estimate_confirmation(turned, VAL_SCORE) == estimate_confirmation(values, VAL_SCORE)


def test_same_seeds_make_the_interval_of_a_difference_short():
    means = {4: 1.0, 9: 0.0, None: 0.5}
    paired = run_all(means, noise=0.1, shared=1.0)
    unpaired = {
        config: {1000 * place + index: value for index, value in own.items()}
        for place, (config, own) in enumerate(paired.items())
    }

    def width(values):
        low, high = config_of(estimate_confirmation(values, VAL_SCORE), 4).difference_interval
        return high - low

    assert width(paired) < 0.5 * width(unpaired)


def test_means_are_shrunk_toward_that_of_the_finalists():
    values = run_all({trial: 0.0 for trial in range(6)} | {None: 0.0}, seeds=2)
    found = estimate_confirmation(values, VAL_SCORE)
    raw = [np.mean([*values[trial].values()]) for trial in range(6)]
    assert np.ptp([config_of(found, trial).mean for trial in range(6)]) < 0.7 * np.ptp(raw)


def test_noise_and_detectable_difference_are_those_of_the_runs():
    found = [
        estimate_confirmation(run_all({4: 1.0, 9: 0.0, None: 0.5}, 8, 0.3, seed=seed), VAL_SCORE) for seed in range(20)
    ]
    assert np.mean([one.noise for one in found]) == pytest.approx(0.3, rel=0.15)
    assert np.mean([one.detectable_difference for one in found]) == pytest.approx(1.4 * 0.3, rel=0.15)


@pytest.mark.parametrize(("seeds", "detectable"), [(2, 4.3), (5, 1.9)])
def test_detectable_difference_is_shown_in_four_of_five(seeds, detectable):
    means = {4: detectable, 9: detectable, None: 0.0}
    found = [estimate_confirmation(run_all(means, seeds, seed=seed), VAL_SCORE) for seed in range(60)]
    assert 0.7 < np.mean([config_of(one, 4).difference_interval[0] > 0 for one in found]) < 0.9
    assert np.mean([one.detectable_difference for one in found]) == pytest.approx(detectable, rel=0.1)


@pytest.mark.parametrize(("seeds", "mean", "trials"), [(5, 0.0, (1, 2, 3)), (2, 2.0, (1, 2))])
def test_intervals_hold_nine_of_ten_true_differences(seeds, mean, trials):
    draw = random.Random(3)
    held = []
    for number in range(120):
        means = {trial: draw.gauss(mean, 1) for trial in trials} | {None: 0.0}
        found = estimate_confirmation(run_all(means, seeds, seed=number), VAL_SCORE)
        intervals = ((config.trial, config.difference_interval) for config in found.configs)
        held += [interval[0] <= means[trial] <= interval[1] for trial, interval in intervals if interval]
    assert 0.87 < np.mean(held) < 0.97


@pytest.mark.parametrize("seeds", [2, 3])
def test_interval_of_a_mean_holds_if_a_seed_moves_all_runs_alike(seeds):
    draw, held, noises = random.Random(5), [], []
    for _ in range(60):
        shifts = [draw.gauss(0, 10) for _ in range(seeds)]
        means = {trial: draw.gauss(0, 1.5) for trial in (1, 2)}
        runs = {
            trial: {n: mean + shift + draw.gauss(0, 1) for n, shift in enumerate(shifts)}
            for trial, mean in means.items()
        }
        found = estimate_confirmation(runs, VAL_SCORE)
        held += [config.interval[0] <= means[config.trial] <= config.interval[1] for config in found.configs]
        noises.append(found.noise)
    assert 0.8 < np.mean(held) < 0.97
    assert 5 < np.mean(noises) < 15


def test_numbers_of_a_statement_have_two_digits_of_the_interval():
    found = estimate_confirmation(run_all({4: 0.87, None: 0.81}, noise=0.01), VAL_SCORE)
    best = dataclasses.replace(
        config_of(found, 4),
        difference=0.018731,
        difference_interval=(0.00412, 0.03499),
        probability_beats_defaults=0.97,
    )
    told = dataclasses.replace(found, configs=(best, config_of(found, None)), chosen=4).statement
    assert told == "trial 4 beats the defaults by 0.019 (90 % interval 0.004 to 0.035, 5 seeds)"
