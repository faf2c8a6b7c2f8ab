"""The law of the optimum over size."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.search.scaling.fit import SizedRun, fit_law
from searchlight.search.scaling.law import ScaledParameter

LR = ScaledParameter("lr", 1e-4, 1e-1, log=True)
DECAY = ScaledParameter("decay", 0.0, 1.0)
WIDTHS = (64, 128, 256, 512)


def run_at(width, exponent, seed=0, count=12, noise=0.0, parameters=(LR, DECAY), at=3e-2, curve=0.0, offset=0.0):
    """Return runs at random settings, whose best lr is `at` times the width / 64 to the `exponent`."""
    random = np.random.default_rng((seed, width))
    runs = []
    for shares in random.uniform(0, 1, (count, len(parameters))):
        values = {p.name: p.from_share(share) for p, share in zip(parameters, shares, strict=True)}
        steps = math.log(width / 64)
        best = math.log(at) + exponent * steps + curve * steps**2
        loss = 3 / width**0.1 + 0.02 * (math.log(values["lr"]) - best) ** 2 + offset
        loss += 0.1 * (values.get("decay", 0.4) - 0.4) ** 2 + noise * random.normal()
        runs.append(SizedRun({"width": width}, values, loss))
    return runs


def ladder(exponent, widths=WIDTHS[:3], **more):
    return [run for width in widths for run in run_at(width, exponent, **more)]


@settings(max_examples=20, deadline=None)
@given(exponent=st.floats(-1.2, -0.2), seed=st.integers(0, 1000))
def test_exponent_of_a_power_law_is_found(exponent, seed):
    law = fit_law(ladder(exponent, seed=seed), [LR, DECAY], draws=30)
    found = law.predict({"width": 1024})
    assert found["lr"].value == pytest.approx(3e-2 * 16**exponent, rel=0.35)
    assert found["decay"].value == pytest.approx(0.4, abs=0.1)
    assert law.trends["lr"]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000))
def test_optimum_that_does_not_move_stays(seed):
    law = fit_law(ladder(0.0, seed=seed, at=3e-3), [LR, DECAY], draws=30)
    assert law.predict({"width": 4096})["lr"].value == pytest.approx(3e-3, rel=0.25)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 100), shuffle=st.randoms(use_true_random=False), unit=st.floats(1e-3, 1e3))
def test_unit_of_size_and_order_of_runs_change_nothing(seed, shuffle, unit):
    runs = ladder(-0.5, seed=seed, noise=0.002)
    scaled = [SizedRun({"width": run.size["width"] * unit}, run.values, run.loss) for run in runs]
    shuffle.shuffle(scaled)
    one = fit_law(runs, [LR, DECAY], draws=20).predict({"width": 1024})
    other = fit_law(scaled, [LR, DECAY], draws=20).predict({"width": 1024 * unit})
    assert one["lr"].value == pytest.approx(other["lr"].value, rel=1e-3)


@pytest.mark.parametrize("mode", ["loss", "negative"])
def test_losses_may_be_negative(mode):
    runs = ladder(-0.6, offset=-10.0 if mode == "negative" else 0.0)
    law = fit_law(runs, [LR, DECAY], draws=30)
    assert law.exponents["lr"]["width"].value == pytest.approx(-0.6, abs=0.15)


def test_diverged_runs_and_outliers_do_not_move_the_law():
    runs = ladder(-0.6, noise=0.001)
    bad = [SizedRun(run.size, {**run.values, "lr": 0.09}, loss) for run in runs[::4] for loss in (math.inf, 60.0)]
    law = fit_law([*runs, *bad], [LR, DECAY], draws=30)
    assert law.exponents["lr"]["width"].value == pytest.approx(-0.6, abs=0.2)
    assert sum(law.runs.values()) == len(runs) + len(bad) // 2


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000))
def test_few_runs_in_many_dimensions_predict_nothing_beyond_the_range(seed):
    others = [ScaledParameter(name, 0.0, 1.0) for name in "abc"]
    runs = [run for width in (64, 128) for run in run_at(width, -0.5, seed, 4, 0.05, (LR, *others))]
    law = fit_law(runs, [LR, *others], draws=30)
    found = law.predict({"width": 128})
    for parameter in (LR, *others):
        assert law.trends[parameter.name] or parameter.low <= found[parameter.name].value <= parameter.high


def test_starting_law_holds_until_the_runs_overrule_it():
    one_size = fit_law(run_at(64, 0.0), [LR, DECAY], {"lr": {"width": -1.0}}, draws=30)
    assert one_size.predict({"width": 256})["lr"].value == pytest.approx(3e-2 / 4, rel=0.2)
    assert not one_size.trends["lr"]
    overruled = fit_law(ladder(-0.2), [LR, DECAY], {"lr": {"width": -1.0}}, draws=30)
    assert overruled.trends["lr"]
    assert overruled.exponents["lr"]["width"].value == pytest.approx(-0.2, abs=0.15)


def test_two_sizes_have_an_exponent_each():
    runs = []
    for width, tokens in ((64, 1e6), (64, 4e6), (128, 1e6), (128, 4e6), (256, 4e6)):
        for run in run_at(width, -0.7):
            lr = run.values["lr"] * (tokens / 1e6) ** 0.3
            if LR.low <= lr <= LR.high:
                runs.append(SizedRun({"width": width, "tokens": tokens}, {**run.values, "lr": lr}, run.loss))
    exponents = fit_law(runs, [LR, DECAY], draws=30).exponents["lr"]
    assert exponents["width"].value == pytest.approx(-0.7, abs=0.15)
    assert exponents["tokens"].value == pytest.approx(0.3, abs=0.15)


def test_curved_law_needs_enough_sizes():
    curved = {"exponent": -0.2, "curve": -0.25, "count": 40}
    runs = [run for width in (64, 128, 256, 512) for run in run_at(width, **curved)]
    straight, bent = fit_law(runs[:120], [LR, DECAY], draws=30), fit_law(runs, [LR, DECAY], draws=30)
    assert straight.coefficients.shape[2] == 2
    assert bent.coefficients.shape[2] == 3
    exact = math.log(3e-2) - 0.2 * math.log(16) - 0.25 * math.log(16) ** 2
    error = [abs(math.log(law.predict({"width": 1024})["lr"].value) - exact) for law in (straight, bent)]
    assert error[1] < error[0] / 2


def test_warnings_name_what_the_setting_rests_on():
    law = fit_law(ladder(-0.6, at=0.5), [LR, DECAY], draws=30)  # the best lr of width 64 is beyond its range
    assert any("lr" in text and "edge" in text for text in law.find_warnings({"width": 512}))
    calm = fit_law(ladder(-0.6), [LR, DECAY], draws=30)
    assert [*calm.find_warnings({"width": 256})] == []
    assert ["20 times beyond" in text for text in calm.find_warnings({"width": 5120})] == [True]
    far = calm.find_warnings({"width": 1e7})
    assert any("outside of its range" in text for text in far)


def test_size_that_no_run_varies_is_named():
    runs = [SizedRun({**run.size, "depth": 2}, run.values, run.loss) for run in ladder(-0.6)]
    [warning] = fit_law(runs, [LR, DECAY], draws=30).find_warnings({"width": 256, "depth": 4})
    assert warning.startswith("no run varies depth")


@pytest.mark.parametrize("runs", [[], [SizedRun({"width": 64}, {"lr": 1e-3, "decay": 0.1}, math.inf)]])
def test_law_needs_a_finite_run(runs):
    with pytest.raises(ValueError, match="a finite run"):
        fit_law(runs, [LR, DECAY])


def test_size_must_have_all_names_and_be_positive():
    law = fit_law(ladder(-0.6), [LR, DECAY], draws=5)
    with pytest.raises(ValueError, match="positive width"):
        law.predict({"depth": 3})
    with pytest.raises(ValueError, match="same names"):
        fit_law([*ladder(-0.6), SizedRun({"depth": 2}, {"lr": 1e-3, "decay": 0.1}, 1.0)], [LR, DECAY])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 100), count=st.integers(1, 14))
def test_proposals_are_distinct_and_in_range(seed, count):
    law = fit_law(ladder(-1.0, seed=seed, noise=0.01), [LR, DECAY], draws=10)
    points = law.propose({"width": 2048}, count)
    assert 1 <= len(points) <= count
    assert all(p.low * 0.999 <= point[p.name] <= p.high * 1.001 for point in points for p in (LR, DECAY))
    assert len({tuple(point.values()) for point in points}) == len(points)
    predicted = law.predict({"width": 2048})["lr"].value
    assert points[0]["lr"] == pytest.approx(min(max(predicted, LR.low), LR.high))


def test_law_that_does_not_move_is_rarely_said_to():
    said = known = 0
    for seed in range(40):
        law = fit_law(ladder(0.0, WIDTHS[:3], seed=seed, noise=0.003, count=10, at=5e-3), [LR, DECAY], draws=60)
        said += sum(law.moves.values())
        known += law.moves == law.trends
    assert said <= 0.1 * 80
    assert known < 40, "a trend that is not clear is no move"
    assert fit_law(ladder(-0.5, noise=0.003, count=10), [LR, DECAY], draws=60).moves["lr"]


def test_two_sizes_must_have_enough_runs_to_show_a_move():
    runs = [*run_at(64, -0.7), *run_at(256, -0.7)]
    few = [*runs[:12], *sorted(runs[12:], key=lambda run: run.loss)[:3]]
    assert fit_law(runs, [LR, DECAY], draws=60).moves["lr"]
    assert not fit_law(few, [LR, DECAY], draws=60).moves["lr"]


def test_most_spreads_hold_the_true_value():
    held = 0
    for seed in range(40):
        law = fit_law(ladder(-0.5, seed=seed, noise=0.003, count=10), [LR, DECAY], draws=60)
        for estimate, true in zip(law.predict({"width": 1024}).values(), (3e-2 / 4, 0.4), strict=True):
            held += estimate.low <= true <= estimate.high
    assert held >= 0.75 * 80
