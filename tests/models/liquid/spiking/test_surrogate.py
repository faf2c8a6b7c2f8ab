import pytest
import snntorch.surrogate
import torch

from models.liquid.spiking import SURROGATES


@pytest.mark.parametrize("name", list(SURROGATES))
def test_at_threshold_the_derivative_is_one_for_any_slope(name: str) -> None:  # C95
    for slope in (0.5, 2.0, 25.0):
        assert SURROGATES[name].derivative(torch.zeros(1), slope).item() == 1


def test_a_fast_sigmoid_falls_to_a_quarter_at_one_over_its_slope() -> None:  # C95
    values = SURROGATES["fast_sigmoid"].derivative(torch.tensor([-0.04, 0.04]), 25.0)
    torch.testing.assert_close(values, torch.tensor([0.25, 0.25]))


@pytest.mark.parametrize(
    ("name", "peer"), [("atan", snntorch.surrogate.atan()), ("fast_sigmoid", snntorch.surrogate.fast_sigmoid(25))]
)
def test_with_the_usual_slope_it_is_that_of_snntorch(name: str, peer: object) -> None:
    distance = torch.linspace(-2, 2, 41, requires_grad=True)
    peer(distance).sum().backward()
    scale = distance.grad.max()
    surrogate = SURROGATES[name]
    torch.testing.assert_close(surrogate.derivative(distance.detach(), surrogate.slope), distance.grad / scale)
    assert scale.item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", list(SURROGATES))
def test_it_is_even_falls_off_and_leaves_its_argument_alone(name: str) -> None:
    distance = torch.linspace(0, 3, 31)
    derivative, slope = SURROGATES[name]
    assert (derivative(distance, slope).diff() < 0).all()
    torch.testing.assert_close(derivative(-distance, slope), derivative(distance, slope))
    assert torch.equal(distance, torch.linspace(0, 3, 31))
