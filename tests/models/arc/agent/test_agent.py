"""The agent and its blocks."""

import os

import pytest
import torch
from torch.nn.functional import one_hot

from searchlight.models.arc.agent import GridAgent, compute_cell_loss
from searchlight.models.arc.agent.blocks import GridBlock, Lookup, PlaceEmbedding
from searchlight.models.arc.puzzles import SYMBOLS, Batch, Puzzle, TrainingPool
from searchlight.models.arc.puzzles.symmetries import draw_renamings, rename


@pytest.fixture
def batch(puzzles: list[Puzzle]) -> Batch:
    generator = torch.Generator().manual_seed(0)
    return TrainingPool(puzzles, []).build_batch(torch.arange(0, 30, 4), generator)


def small(seed: int = 0, **settings: object) -> GridAgent:
    torch.manual_seed(seed)
    return GridAgent(**{"width": 16, "layers": 1, **settings})  # type: ignore[arg-type]


def answer(agent: GridAgent, batch: Batch, prompt: torch.Tensor | None = None) -> torch.Tensor:
    return agent(batch.query, batch.demo_inputs, batch.demo_outputs, batch.demo_mask, prompt)


def test_an_untrained_agent_gives_the_guess_that_fits(puzzles: list[Puzzle]) -> None:
    generator = torch.Generator().manual_seed(0)
    for puzzle in (puzzles[0], puzzles[3]):  # mirrored; enlarged
        episodes = TrainingPool([puzzle], []).build_batch(torch.arange(5), generator)
        assert (answer(small(), episodes)[-1].argmax(-1) == episodes.target).float().mean() > 0.98


@pytest.mark.parametrize("live", [0, 1])
def test_masked_demonstrations_change_nothing(batch: Batch, live: int) -> None:
    agent = small()
    mask = torch.zeros_like(batch.demo_mask)
    mask[:, :live] = True
    batch = batch._replace(demo_mask=mask)
    other = torch.randint(SYMBOLS, batch.demo_inputs.shape, dtype=torch.uint8)
    shown = mask[:, :, None, None]
    disturbed = batch._replace(
        demo_inputs=torch.where(shown, batch.demo_inputs, other),
        demo_outputs=torch.where(shown, batch.demo_outputs, other.flip(0)),
    )
    expected = answer(agent, batch)
    assert torch.isfinite(expected).all()
    torch.testing.assert_close(answer(agent, disturbed), expected, rtol=0, atol=1e-5)
    if live:
        fewer = Batch(*batch[:2], *(part[:, :live] for part in batch[2:5]))
        torch.testing.assert_close(answer(agent, fewer), expected, rtol=0, atol=1e-5)


def test_demonstration_order_and_other_episodes_do_not_count(batch: Batch) -> None:
    agent = small(steps=2)
    expected = answer(agent, batch)
    assert expected.shape == (2, *batch.query.shape, SYMBOLS)
    assert expected.dtype == torch.float32
    turned = Batch(*batch[:2], *(part.flip(1) for part in batch[2:5]))
    torch.testing.assert_close(answer(agent, turned), expected, rtol=0, atol=1e-5)
    alone = Batch(*(part[2:3] for part in batch[:5]))
    torch.testing.assert_close(answer(agent, alone)[:, 0], expected[:, 2], rtol=0, atol=1e-5)


def test_renamed_colors_rename_the_answer_of_unnamed_symbols(batch: Batch) -> None:
    agent = small()
    with torch.no_grad():
        agent.names[3:] = agent.names[3]
    tables = draw_renamings(len(batch.query), torch.Generator().manual_seed(0))
    renamed = Batch(*(rename(part, tables) for part in batch[:4]), batch.demo_mask)
    back = tables.long()[:, None, None].expand(*batch.query.shape, SYMBOLS)
    torch.testing.assert_close(answer(agent, renamed)[-1].gather(-1, back), answer(agent, batch)[-1], rtol=0, atol=1e-5)


def test_a_prompt_conditions_the_answer_and_gets_a_gradient(batch: Batch) -> None:
    agent = small(prompt_dim=5)
    prompt = torch.randn(len(batch.query), 5, requires_grad=True)
    prompted = answer(agent, batch, prompt)
    assert not torch.equal(prompted, answer(agent, batch))
    compute_cell_loss(prompted, batch.target)[0].backward()
    assert (prompt.grad != 0).any(1).all()


@pytest.mark.parametrize("steps", [1, 2])
def test_every_parameter_gets_a_gradient_in_the_first_update(batch: Batch, steps: int) -> None:
    agent = small(steps=steps)
    compute_cell_loss(answer(agent, batch), batch.target)[0].backward()
    assert [name for name, weight in agent.named_parameters() if weight.grad is None or not weight.grad.any()] == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_finite_and_close(batch: Batch, dtype: torch.dtype) -> None:  # C48
    is_limited = "ATEN_CPU_CAPABILITY" in os.environ and torch.cpu._is_avx512_supported()
    if dtype is torch.bfloat16 and is_limited:
        pytest.skip("torch's attention in bf16 fails if a CPU has AVX-512 and its kernels may not use it")
    agent = small()
    mask = batch.demo_mask.clone()
    mask[0] = False
    for used in (batch, batch._replace(demo_mask=mask)):
        agent.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            logits = answer(agent, used)
        loss, _ = compute_cell_loss(logits, used.target)
        loss.backward()
        assert loss.dtype == torch.float32
        assert torch.isfinite(logits).all()
        assert all(p.dtype == torch.float32 and torch.isfinite(p.grad).all() for p in agent.parameters())
        if used is batch:
            torch.testing.assert_close(logits, answer(agent, batch), rtol=0, atol=0.2)


def test_places_count_from_both_corners() -> None:
    place = PlaceEmbedding(4)
    small, large = place(torch.tensor([[3, 3], [5, 3]]), 6)
    assert small.shape == (6, 6, 4)
    torch.testing.assert_close(small - large, (small - large)[:, :1].expand(6, 6, 4))
    column = place.column_start.weight[0] + place.column_end.weight[32 - 3]
    expected = small[2, 0] - place.row_start.weight[2] - column
    torch.testing.assert_close(place.row_end(torch.tensor([31])), expected[None])


def test_a_block_keeps_the_shape_and_sees_its_row_and_column() -> None:
    block = GridBlock(8, dropout=0.0)
    torch.nn.init.ones_(block.far)
    x = torch.randn(2, 7, 7, 8)
    touched = x.clone()
    touched[0, 0, 0] = 5 * torch.randn(8)
    changed = (block(touched) != block(x)).any(-1)
    assert block(x).shape == x.shape
    assert changed[0, 0].all()
    assert changed[0, :, 0].all()
    assert not changed[0, 2:, 2:].any()
    assert not changed[1].any()


def test_votes_are_shares_of_attention() -> None:
    lookup = Lookup(8, heads=2, symbols=3)
    answers = one_hot(torch.randint(3, (2, 4, 5)), 3).float()
    mask = torch.tensor([[True] * 4, [True, False, False, False]])
    asked, shown = (one_hot(torch.randint(3, shape), 3).float() for shape in ((2, 6), (2, 4, 5)))
    read, votes = lookup(torch.randn(2, 6, 8), torch.randn(2, 4, 5, 8), asked, shown, answers, mask)
    assert read.shape == (2, 6, 8)
    assert votes.shape == (2, 6, 2, 3)
    torch.testing.assert_close(votes.sum(-1), torch.ones(2, 6, 2))
    unseen = answers[1, 0].sum(0) == 0
    assert (votes[1][..., unseen] == 0).all()


def test_cells_of_one_symbol_find_each_other_untrained() -> None:
    torch.manual_seed(0)
    lookup, symbols = Lookup(8, heads=2, symbols=3), one_hot(torch.tensor([0, 1, 2]), 3).float()
    _, votes = lookup(torch.zeros(1, 3, 8), torch.zeros(1, 1, 3, 8), symbols[None], symbols[None, None],
                      symbols.roll(1, 0)[None, None], torch.ones(1, 1, dtype=torch.bool))  # fmt: skip
    assert (votes.argmax(-1) == torch.tensor([2, 0, 1])[None, :, None]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_lookup_without_demonstrations_finds_nothing(dtype: torch.dtype) -> None:  # C48
    lookup = Lookup(8, heads=2, symbols=3).to(dtype)
    x, pairs = torch.randn(1, 6, 8, dtype=dtype), 30 * torch.randn(1, 2, 5, 8, dtype=dtype)
    symbols = torch.ones(1, 2, 5, 3)
    found, votes = lookup(x, pairs, torch.ones(1, 6, 3), symbols, symbols, torch.zeros(1, 2).bool())
    assert (votes == 0).all()
    torch.testing.assert_close(found, lookup.read.bias.expand(1, 6, 8))
