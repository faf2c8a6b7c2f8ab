import pytest
import torch

from models.liquid.data import load
from models.liquid.data.autoregression import Series, squared_errors

DIGEST = "ee7222f72b190482f2a7aadf55dbaff877ce1562493fada9b9c9523daaae0b10"


@pytest.fixture(scope="module")
def source():
    return load("series")


def test_series_are_five_domains_of_one_value(source) -> None:
    assert (source.kind, source.classes, source.features, source.outputs) == ("values", 0, 1, 1)
    assert [domain.name for domain in source.domains] == ["sines", "mackey-glass", "lorenz", "spring", "van-der-pol"]
    for domain in source.domains:
        for samples, count in ((domain.train, 256), (domain.test, 64)):
            assert samples.inputs.shape == samples.targets.shape == samples.dt.shape == (count, 128, 1)
            assert {tensor.dtype for tensor in samples} == {torch.float32}
            assert all(tensor.isfinite().all() for tensor in samples)


def test_targets_are_the_inputs_that_come_next(source) -> None:
    for domain in source.domains:
        for samples in domain[1:]:
            assert torch.equal(samples.inputs[:, 1:], samples.targets[:, :-1])


def test_steps_are_irregular_and_positive(source) -> None:
    for domain in source.domains:
        dt = domain.train.dt
        assert dt.min() >= 1 / 16
        assert dt.mean() == pytest.approx(1, abs=0.02)
        assert dt.std() == pytest.approx(0.5**0.5, abs=0.02)
    assert not torch.equal(source.domains[0].train.dt, source.domains[1].train.dt)


def test_series_are_standardised_and_live_on_to_their_end(source) -> None:
    for domain in source.domains:
        inputs = domain.train.inputs
        assert inputs.mean().abs() < 1e-3
        assert inputs.std() == pytest.approx(1, abs=1e-3)
        assert inputs[:, -20:].std() > 0.1


def test_every_series_is_another(source) -> None:
    for domain in source.domains:
        both = torch.cat([domain.train.inputs, domain.test.inputs])
        assert len(both.unique(dim=0)) == len(both)


def test_the_same_series_come_every_time(source) -> None:
    assert source.digest == load("series").digest == DIGEST
    assert load("series", length=16).digest != DIGEST


def test_linear_models_beat_repeating_and_the_step_helps_them(source) -> None:
    assert set(source.baselines) == {domain.name for domain in source.domains}
    for errors in source.baselines.values():
        assert 0 < errors["ar_dt"] < errors["ar"] < errors["repeat"] < 1


def test_a_series_that_is_linear_is_predicted_by_a_linear_model() -> None:
    inputs = torch.randn(200, 20, 1, generator=torch.Generator().manual_seed(0))
    targets = 0.5 * inputs.roll(1, dims=1) + 0.25 * inputs
    targets[:, 0] = 0.25 * inputs[:, 0]
    parts = [
        Series(*(t[rows].numpy() for t in (inputs, targets, torch.ones_like(inputs))))
        for rows in (slice(100), slice(100, 200))
    ]
    errors = squared_errors(*parts)
    assert errors["ar"] == pytest.approx(0, abs=1e-10)
    assert errors["repeat"] == pytest.approx(0.75**2 + 0.5**2, rel=0.1)


def test_the_wanted_length_must_be_positive() -> None:
    with pytest.raises(ValueError, match="length must be at least 1, but got 0"):
        load("series", length=0)
