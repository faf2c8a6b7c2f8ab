"""The memory of earlier tasks: who gets in, who is drawn, and what is kept of the logits."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.models.liquid.continual import Reservoir, compute_der_loss

bounded = settings(max_examples=40)
streams = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def filled(capacity: int, counts: list[int], balanced: bool = False, seed: int = 0) -> Reservoir:
    memory, draws = Reservoir(capacity, balanced), generator(seed)
    for task, count in enumerate(counts):
        memory.offer(task, count, draws)
    return memory


def held(memory: Reservoir) -> list[tuple[int, int]]:
    samples = memory.list_missing()  # nothing has logits here
    return list(zip(samples.tasks.tolist(), samples.indices.tolist(), strict=True))


@bounded
@given(st.integers(1, 60), streams, st.booleans())
def test_it_holds_as_many_as_it_can_and_balanced_shares(capacity: int, counts: list[int], balanced: bool) -> None:
    memory = filled(capacity, counts, balanced)
    samples = held(memory)
    assert len(samples) == len(set(samples)) == memory.size == min(capacity, sum(counts))
    assert all(0 <= index < counts[task] for task, index in samples)
    shares = torch.tensor([task for task, _ in samples]).bincount(minlength=len(counts)).tolist()
    for share, count in zip(shares, counts, strict=True):
        assert not balanced or share == count or share >= max(shares) - 1


@pytest.mark.parametrize("balanced", [False, True])
def test_every_sample_has_the_same_chance_whenever_it_came(balanced: bool) -> None:
    capacity, trials, often = 15, 600, torch.zeros(90)
    for trial in range(trials):
        memory = filled(capacity, [30, 30, 30], balanced, seed=trial)
        often[[30 * task + index for task, index in held(memory)]] += 1
    expected = trials * capacity / 90
    chi_square = ((often - expected).square() / expected).sum() / (1 - capacity / 90)
    assert 89 - 4 * (2 * 89) ** 0.5 < chi_square < 89 + 4 * (2 * 89) ** 0.5  # four standard deviations


@bounded
@given(st.integers(1, 60), streams, st.booleans(), st.booleans(), st.integers(0, 90))
def test_a_draw_has_exactly_as_many_as_asked(
    capacity: int, counts: list[int], shares: bool, balanced: bool, count: int
) -> None:
    memory = filled(capacity, counts, shares)
    drawn = memory.draw(count, generator(1), balanced)
    assert [part.shape for part in drawn] == [(count,)] * 3
    assert {part.dtype for part in drawn} == {torch.int64}
    there = set(held(memory))
    assert set(zip(drawn.tasks.tolist(), drawn.indices.tolist(), strict=True)) <= there
    of_task = drawn.tasks.bincount(minlength=len(counts))[sorted({task for task, _ in there})]
    if balanced:
        assert of_task.max() - of_task.min() <= 1
    for task in drawn.tasks.unique().tolist() if balanced else [None]:
        of = [slot for slot, own in zip(drawn.slots.tolist(), drawn.tasks.tolist(), strict=True) if task in (None, own)]
        whole = memory.size if task is None else sum(own == task for own, _ in there)
        often = torch.tensor(of, dtype=torch.int64).bincount()
        assert not of or often.max() <= -(-len(of) // whole)  # none again before all


def test_draws_favor_nobody_and_are_in_random_order() -> None:
    memory, draws = filled(20, [200, 200]), generator(5)
    slots = torch.stack([memory.draw(5, draws).slots for _ in range(800)])
    often = slots.flatten().bincount(minlength=20)
    assert often.float().std() < 30  # of 200 each; 12 is what chance gives
    for count in (10, 1):  # fewer than there are tasks, too
        balanced = torch.stack([memory.draw(count, draws, balanced=True).tasks for _ in range(400)])
        torch.testing.assert_close(balanced.float().mean(0), torch.full((count,), 0.5), rtol=0, atol=0.12)


@pytest.mark.parametrize("balanced", [False, True])
def test_the_global_generator_is_neither_used_nor_moved(balanced: bool) -> None:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        memory = filled(30, [70, 50, 60], balanced, seed=9)
        found.append([part.tolist() for part in memory.draw(40, generator(4), balanced)])
        assert torch.equal(torch.get_rng_state(), before)
    assert found[0] == found[1]


def test_logits_are_kept_until_their_sample_goes() -> None:
    memory, draws = filled(10, [10]), generator(1)
    first = memory.list_missing()
    memory.store(first.slots, torch.stack([first.tasks, first.indices], dim=1).half())
    assert len(memory.list_missing().slots) == 0
    memory.offer(1, 30, draws)
    entered = memory.list_missing()
    assert 0 < len(entered.slots) < 10
    assert set(entered.tasks.tolist()) == {1}
    with pytest.raises(ValueError, match="must have logits"):
        memory.get_logits(entered.slots)
    memory.store(entered.slots, torch.stack([entered.tasks, entered.indices], dim=1).float())
    drawn = memory.draw(25, draws)
    logits = memory.get_logits(drawn.slots)
    assert logits.dtype == torch.float32
    assert logits.tolist() == torch.stack([drawn.tasks, drawn.indices], dim=1).tolist()


@pytest.mark.parametrize("balanced", [False, True])
def test_a_loaded_state_goes_on_where_it_was(balanced: bool, tmp_path: Path) -> None:
    memory, resumed = filled(12, [20, 20], balanced), Reservoir(12, balanced)
    memory.store(memory.list_missing().slots[:5], torch.randn(5, 3, generator=generator()))
    torch.save(memory.state_dict(), tmp_path / "state.pt")
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    ends = []
    for one in (memory, resumed):
        one.offer(2, 20, generator(8))
        ends.append([part.tolist() for part in (*one.draw(30, generator(2)), *one.list_missing())])
    assert ends[0] == ends[1]
    with pytest.raises(ValueError, match=f"must have balanced={not balanced}"):
        Reservoir(memory.capacity, not balanced).load_state_dict(memory.state_dict())


def test_the_loss_of_logits_by_hand() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]], dtype=torch.bfloat16, requires_grad=True)
    stored = torch.tensor([[1.0, 0.0, 0.0], [3.0, 0.0, 0.0]])
    loss = compute_der_loss(logits, stored, torch.ones(2, 3, dtype=torch.bool))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.detach(), torch.tensor([13 / 3, 3.0]))
    loss.sum().backward()
    torch.testing.assert_close(logits.grad.float(), (2 / 3) * (logits.detach().float() - stored), rtol=1e-2, atol=0)
    rows = torch.tensor([[True, True, False], [False, True, True]])
    assert compute_der_loss(logits, stored, rows).tolist() == [2, 0]


@pytest.mark.parametrize("capacity", [4, 40])
def test_a_reservoir_of_another_capacity_keeps_what_fits(capacity: int) -> None:
    """As when a trial of a population takes up another one."""
    before, after = filled(12, [20, 20], balanced=True), Reservoir(capacity, balanced=True)
    was = before.list_missing()
    before.store(was.slots, torch.stack([was.tasks, was.indices], dim=1).float())
    after.load_state_dict(before.state_dict())
    assert after.size == min(capacity, 12)
    tasks, indices, slots = after.draw(after.size, generator())
    kept = torch.stack([tasks, indices], dim=1)
    assert after.get_logits(slots).tolist() == kept.tolist()
    assert set(map(tuple, kept.tolist())) <= set(zip(was.tasks.tolist(), was.indices.tolist(), strict=True))
    assert tasks.bincount().tolist() == [after.size // 2] * 2
    after.offer(2, 20, generator(1))
    assert set(after.draw(capacity, generator()).tasks.tolist()) == {0, 1, 2}
