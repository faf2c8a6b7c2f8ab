import pytest
import torch

from models.arc import SYMBOLS, Batch, GridAgent, Puzzle, TrainingPool, cell_loss
from models.arc.augment import random_renamings, rename


@pytest.fixture
def batch(puzzles: list[Puzzle]) -> Batch:
    generator = torch.Generator().manual_seed(0)
    return TrainingPool(puzzles, []).batch(torch.arange(0, 30, 4), generator)


def small(seed: int = 0, **settings: object) -> GridAgent:
    torch.manual_seed(seed)
    return GridAgent(**{"width": 16, "layers": 1, **settings})  # type: ignore[arg-type]


def answer(agent: GridAgent, batch: Batch, prompt: torch.Tensor | None = None) -> torch.Tensor:
    return agent(batch.query, batch.demo_inputs, batch.demo_outputs, batch.demo_mask, prompt)


@pytest.mark.parametrize("steps", [1, 3])
def test_there_are_logits_for_every_step_and_cell(batch: Batch, steps: int) -> None:
    logits = answer(small(steps=steps), batch)
    assert logits.shape == (steps, *batch.query.shape, SYMBOLS)
    assert logits.dtype == torch.float32


def test_without_guesses_an_untrained_agent_copies_the_query(batch: Batch) -> None:
    logits = answer(small(guesses=False), batch)
    assert (logits[-1].argmax(-1) == batch.query).float().mean() > 0.98


def test_an_untrained_agent_answers_with_the_guess_that_the_demonstrations_agree_with(
    puzzles: list[Puzzle],
) -> None:
    for puzzle in (puzzles[0], puzzles[3]):  # mirrored; enlarged
        batch = TrainingPool([puzzle], []).batch(torch.arange(5), torch.Generator().manual_seed(0))
        assert (answer(small(), batch)[-1].argmax(-1) == batch.target).float().mean() > 0.98


@pytest.mark.parametrize("live", [0, 1, 3])
def test_masked_demonstrations_change_nothing(batch: Batch, live: int) -> None:
    agent = small()
    mask = torch.zeros_like(batch.demo_mask)
    mask[:, :live] = True
    generator = torch.Generator().manual_seed(1)
    other = torch.randint(SYMBOLS, batch.demo_inputs.shape, generator=generator, dtype=torch.uint8)
    disturbed = Batch(
        batch.query,
        batch.target,
        torch.where(mask[:, :, None, None], batch.demo_inputs, other),
        torch.where(mask[:, :, None, None], batch.demo_outputs, other.flip(0)),
        mask,
    )
    expected = answer(agent, batch._replace(demo_mask=mask))
    assert torch.isfinite(expected).all()
    torch.testing.assert_close(answer(agent, disturbed), expected, rtol=0, atol=1e-5)
    if live:
        fewer = Batch(
            batch.query,
            batch.target,
            batch.demo_inputs[:, :live],
            batch.demo_outputs[:, :live],
            mask[:, :live],
        )
        torch.testing.assert_close(answer(agent, fewer), expected, rtol=0, atol=1e-5)


def test_the_order_of_demonstrations_does_not_matter(batch: Batch) -> None:
    agent = small()
    turned = batch._replace(
        demo_inputs=batch.demo_inputs.flip(1),
        demo_outputs=batch.demo_outputs.flip(1),
        demo_mask=batch.demo_mask.flip(1),
    )
    torch.testing.assert_close(answer(agent, turned), answer(agent, batch), rtol=0, atol=1e-5)


def test_episodes_of_a_batch_do_not_mix(batch: Batch) -> None:
    agent = small()
    alone = Batch(*(part[2:3] for part in batch[:5]))
    torch.testing.assert_close(answer(agent, alone)[:, 0], answer(agent, batch)[:, 2], rtol=0, atol=1e-5)


def test_without_symbol_names_renaming_colours_renames_the_answer(batch: Batch) -> None:
    agent = small()
    with torch.no_grad():
        agent.names[3:] = agent.names[3]
    tables = random_renamings(len(batch.query), torch.Generator().manual_seed(0))
    renamed = Batch(*(rename(part, tables) for part in batch[:4]), batch.demo_mask)
    back = tables.long()[:, None, None].expand(*batch.query.shape, SYMBOLS)
    torch.testing.assert_close(answer(agent, renamed)[-1].gather(-1, back), answer(agent, batch)[-1], rtol=0, atol=1e-5)


def test_a_prompt_conditions_the_answer_and_gets_a_gradient(batch: Batch) -> None:
    agent = small(prompt_dim=5)
    prompt = torch.randn(len(batch.query), 5, requires_grad=True)
    assert not torch.equal(answer(agent, batch, prompt), answer(agent, batch))
    cell_loss(answer(agent, batch, prompt), batch.target)[0].backward()
    assert prompt.grad is not None
    assert (prompt.grad != 0).any(1).all()


def test_a_prompt_of_the_wrong_length_is_refused(batch: Batch) -> None:
    with pytest.raises(ValueError, match="prompt must have 5 entries, but got 4"):
        answer(small(prompt_dim=5), batch, torch.zeros(len(batch.query), 4))
    with pytest.raises(ValueError, match="prompt must have 0 entries, but got 4"):
        answer(small(), batch, torch.zeros(len(batch.query), 4))


def test_sizes_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="steps must be at least 1, but got 0"):
        GridAgent(steps=0)
    canvas = torch.zeros(1, 1, 33, 33, dtype=torch.uint8)
    with pytest.raises(ValueError, match="query must have a side of at most 32, but got 33"):
        small()(canvas[0], canvas, canvas, torch.ones(1, 1, dtype=torch.bool))


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("guesses", [True, False])
def test_every_parameter_gets_a_gradient_in_the_first_update(batch: Batch, steps: int, guesses: bool) -> None:
    agent = small(steps=steps, guesses=guesses)
    cell_loss(answer(agent, batch), batch.target)[0].backward()
    for name, parameter in agent.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_finite_and_close(batch: Batch, dtype: torch.dtype) -> None:  # C48
    agent = small()
    full = answer(agent, batch)
    mask = batch.demo_mask.clone()
    mask[0] = False
    for used in (batch, batch._replace(demo_mask=mask)):
        agent.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            logits = answer(agent, used)
        loss, _ = cell_loss(logits, used.target)
        loss.backward()
        assert loss.dtype == torch.float32
        assert torch.isfinite(logits).all()
        assert all(p.dtype == torch.float32 and torch.isfinite(p.grad).all() for p in agent.parameters())
        if used is batch:
            torch.testing.assert_close(logits, full, rtol=0, atol=0.2)


def test_a_small_agent_overfits_a_few_episodes(batch: Batch) -> None:
    agent = small(width=24, guesses=False)
    optimizer = torch.optim.AdamW(agent.parameters(), lr=5e-3)
    few = Batch(*(part[:6] for part in batch[:5]))
    first = None
    for _ in range(150):
        optimizer.zero_grad()
        loss, _ = cell_loss(answer(agent, few), few.target)
        loss.backward()
        optimizer.step()
        first = first or loss.item()
    assert loss.item() < 0.1 * first
    right = (answer(agent, few)[-1].argmax(-1) == few.target)[few.target >= 2]
    assert right.float().mean() > 0.95
