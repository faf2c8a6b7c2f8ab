"""The distribution over operations: valid ones alone, nearly uniform at first, in fp32."""

import pytest
import torch

from searchlight.models.arc.policy import ProgramPolicy

STATISTICS = torch.rand(20, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor([1, 1, 1, 100, 1, 0])
VALID = torch.rand(20, 9, generator=torch.Generator().manual_seed(1)) < 0.6


def make(prompt_dim: int = 0, dropout: float = 0.0) -> ProgramPolicy:
    torch.manual_seed(0)
    return ProgramPolicy(STATISTICS, 9, prompt_dim, width=16, dropout=dropout)


def test_only_valid_operations_have_a_probability():
    probs = make()(STATISTICS, None, VALID).exp()
    torch.testing.assert_close(probs.sum(1), torch.ones(20))
    assert (probs[~VALID] == 0).all()
    torch.testing.assert_close(probs, VALID / VALID.sum(1, keepdim=True), atol=0.01, rtol=0)
    nothing = make()(STATISTICS[:1], None, torch.zeros(1, 9, dtype=torch.bool))
    torch.testing.assert_close(nothing.exp(), torch.full((1, 9), 1 / 9))


@pytest.mark.parametrize("prompt_dim", [0, 4])
def test_every_parameter_has_a_gradient_in_the_first_update(prompt_dim):
    policy = make(prompt_dim)
    prompt = torch.randn(20, prompt_dim) if prompt_dim else None
    log_probs = policy(STATISTICS, prompt, VALID)
    (log_probs * torch.randn(20, 9))[VALID].sum().backward()
    assert all(parameter.grad.norm() > 0 for parameter in policy.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_log_probabilities_are_fp32_under_autocast(dtype):  # C48
    policy = make()
    expected = policy(STATISTICS, None, VALID)
    with torch.autocast("cpu", dtype):
        found = policy(STATISTICS, None, VALID)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[VALID], expected[VALID], atol=0.01, rtol=0)


def test_statistics_are_seen_in_deviations_from_the_training():
    policy = make()
    more = STATISTICS.clone()
    more[:, 3] += 0.001 * STATISTICS[:, 3].std()  # hardly more, on a scale of hundreds
    close = (policy(more, None, VALID) - policy(STATISTICS, None, VALID))[VALID].abs().max()
    more[:, 3] = 1e9  # as much as four deviations
    far = policy(more, None, VALID)[VALID]
    assert close < 1e-5
    assert far.isfinite().all()
    assert set(policy.state_dict()) >= {"mean", "deviation"}, "a saved policy sees puzzles as before"
