from dataclasses import replace

import pytest
import torch

from searchlight.models.arc.prompt import (
    PromptEncoder,
    VectorCache,
    describe_rule,
    format_grids,
    hash_puzzle,
    load_language_model,
)
from searchlight.models.arc.puzzles import Puzzle

TEXTS = ["The grid is mirrored.", "Cells are moved. Sizes stay.", "Nothing is shown."]
trained_or_not = pytest.mark.parametrize("trained", [False, True], ids=["vectors", "trained"])


def encoder(trained: bool) -> tuple[PromptEncoder, torch.Tensor]:
    """An encoder, and the texts of a batch for it."""
    torch.manual_seed(0)
    language = load_language_model(None, None, trained)
    ids = language.tokenize(TEXTS)
    if trained:
        return PromptEncoder(language.hidden, 256, language), ids
    return PromptEncoder(language.hidden, 256), language(ids)


@trained_or_not
def test_every_parameter_gets_a_gradient_in_the_first_backward(trained) -> None:
    made, text = encoder(trained)
    prompts = made(text)
    (prompts * torch.randn(prompts.shape)).sum().backward()
    assert [name for name, weight in made.named_parameters() if not weight.grad.norm() > 0] == []


@trained_or_not
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_prompts_and_gradients_are_fp32_under_autocast(trained, dtype) -> None:
    made, text = encoder(trained)
    expected = made(text)
    with torch.autocast("cpu", dtype):
        prompts = made(text)
    assert prompts.dtype == torch.float32
    assert (prompts - expected).square().mean().sqrt() < 0.05
    prompts.square().mean().backward()
    assert {weight.grad.dtype for weight in made.parameters()} == {torch.float32}
    assert all(weight.grad.isfinite().all() for weight in made.parameters())


def test_prompts_have_unit_size_and_depend_on_the_text() -> None:
    made, text = encoder(trained=False)
    prompts = made(1000 * text)
    assert prompts.shape == (3, 256)
    torch.testing.assert_close(prompts.square().mean(1), torch.ones(3), atol=0.01, rtol=0)
    prompts = made(text)
    assert not torch.allclose(made(text.flip(0)), prompts, atol=0.01)


@trained_or_not
def test_a_saved_encoder_gives_the_same_prompts(trained) -> None:
    made, text = encoder(trained)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.01)
    other = encoder(trained)[0].eval()
    expected = made.eval()(text)
    assert not torch.equal(other(text), expected)
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(text), expected)
    names = {name.split(".")[0] for name in made.state_dict()}
    assert names == {"text", "norm"} | ({"language"} if trained else set())


@pytest.mark.parametrize("describe", [describe_rule, format_grids])
def test_a_prompt_does_not_depend_on_the_answer(puzzles, tiny, describe) -> None:
    made = PromptEncoder(tiny.hidden, 256).eval()

    def prompt(puzzle: Puzzle) -> torch.Tensor:
        shown, query = puzzle.demonstrations, puzzle.tests[0][0]
        text = VectorCache().get_vectors([hash_puzzle(shown, query)], [describe(shown, query)], tiny)
        return made(text)

    prompts = [prompt(puzzle) for puzzle in puzzles]
    for puzzle, expected in zip(puzzles, prompts, strict=True):
        query, answer = puzzle.tests[0]
        assert torch.equal(prompt(replace(puzzle, tests=((query, (answer.T + 1) % 10),))), expected)
    assert torch.pdist(torch.cat(prompts)).min() > 0
