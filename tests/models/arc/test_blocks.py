import pytest
import torch

from models.arc.blocks import GridBlock, Lookup, PlaceEmbedding


def test_places_count_from_both_corners() -> None:
    place = PlaceEmbedding(4)
    small, large = place(torch.tensor([[3, 3], [5, 3]]), 6)
    assert small.shape == (6, 6, 4)
    torch.testing.assert_close(small - large, (small - large)[:, :1].expand(6, 6, 4))
    torch.testing.assert_close(
        place.row_end(torch.tensor([31])), (small[2, 0] - place.row_start.weight[2] - _column(place))[None]
    )


def _column(place: PlaceEmbedding) -> torch.Tensor:
    return place.column_start.weight[0] + place.column_end.weight[32 - 3]


def test_a_block_keeps_the_shape_and_sees_its_row_and_column() -> None:
    torch.manual_seed(0)
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
    torch.manual_seed(0)
    lookup = Lookup(8, heads=2, symbols=3)
    answers = torch.nn.functional.one_hot(torch.randint(3, (2, 4, 5)), 3).float()
    mask = torch.tensor([[True] * 4, [True, False, False, False]])
    read, votes = lookup(torch.randn(2, 6, 8), torch.randn(2, 4, 5, 8), answers, mask)
    assert read.shape == (2, 6, 8)
    assert votes.shape == (2, 6, 2, 3)
    torch.testing.assert_close(votes.sum(-1), torch.ones(2, 6, 2))
    unseen = answers[1, 0].sum(0) == 0
    assert (votes[1][..., unseen] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_lookup_without_demonstrations_finds_nothing(dtype: torch.dtype) -> None:  # C48
    torch.manual_seed(0)
    lookup = Lookup(8, heads=2, symbols=3).to(dtype)
    answers = torch.ones(1, 2, 5, 3)
    found, votes = lookup(
        torch.randn(1, 6, 8, dtype=dtype),
        30 * torch.randn(1, 2, 5, 8, dtype=dtype),
        answers,
        torch.zeros(1, 2).bool(),
    )
    assert (votes == 0).all()
    torch.testing.assert_close(found, lookup.read.bias.expand(1, 6, 8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_hidden_demonstrations_are_masked_within_the_range_of_the_dtype(dtype: torch.dtype) -> None:  # C48
    torch.manual_seed(0)
    lookup = Lookup(8, heads=2, symbols=3)
    answers = torch.nn.functional.one_hot(torch.randint(3, (1, 2, 5)), 3).float()
    answers[:, 1] = torch.tensor([0.0, 0.0, 1.0])
    x, pairs = torch.randn(1, 6, 8), 30 * torch.randn(1, 2, 5, 8)
    with torch.autocast("cpu", dtype=dtype):
        found, votes = lookup(x, pairs, answers, torch.tensor([[True, False]]))
        alone = lookup(x, pairs[:, :1], answers[:, :1], torch.tensor([[True]]))
    assert found.isfinite().all()
    assert votes.dtype == dtype
    torch.testing.assert_close((found, votes), alone, rtol=0, atol=0.05)
