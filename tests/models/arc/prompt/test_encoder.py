from dataclasses import replace

import pytest
import torch

from searchlight.models.arc.prompt import (
    PromptEncoder,
    VectorCache,
    compute_puzzle_features,
    describe_rule,
    format_grids,
    hash_puzzle,
    load_language_model,
)
from searchlight.models.arc.puzzles import Puzzle, draw_canvases

FUSES = ("gate", "concat", "mean")
TEXTS = ["The grid is mirrored.", "Cells are moved. Sizes stay.", "Nothing is shown."]
MODES = ("vectors", "prefix", "whole")
PAIRS = [("vectors", "gate"), ("prefix", "concat"), ("whole", "mean")]


def encoder(mode: str, fuse: str = "gate", **options) -> tuple[PromptEncoder, torch.Tensor, torch.Tensor]:
    """An encoder, and the texts and features of a batch for it."""
    torch.manual_seed(0)
    language = load_language_model(None, None, trainable=mode == "whole")
    features = torch.rand(len(TEXTS), 15) * 2 - 1
    ids = language.tokenize(TEXTS)
    if mode == "vectors":
        return PromptEncoder(language.hidden, fuse=fuse, **options), language(ids), features
    prefix = 4 if mode == "prefix" else 0
    made = PromptEncoder(
        language.hidden, fuse=fuse, prefix=prefix, language=language, trainable=mode == "whole", **options
    )
    return made, ids, features


@pytest.mark.parametrize(("mode", "fuse"), PAIRS)
def test_every_parameter_gets_a_gradient_in_the_first_backward(mode, fuse) -> None:
    made, text, features = encoder(mode, fuse)
    prompts = made(text, features)
    (prompts * torch.randn(prompts.shape)).sum().backward()
    assert [name for name, weight in made.named_parameters() if not weight.grad.norm() > 0] == []


@pytest.mark.parametrize(("mode", "fuse"), PAIRS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_prompts_and_gradients_are_fp32_under_autocast(mode, fuse, dtype) -> None:
    made, text, features = encoder(mode, fuse)
    expected = made(text, features)
    with torch.autocast("cpu", dtype):
        prompts = made(text, features)
    assert prompts.dtype == torch.float32
    assert (prompts - expected).square().mean().sqrt() < 0.05
    prompts.square().mean().backward()
    assert {weight.grad.dtype for weight in made.parameters()} == {torch.float32}
    assert all(weight.grad.isfinite().all() for weight in made.parameters())


@pytest.mark.parametrize("fuse", FUSES)
def test_prompts_have_unit_size_and_depend_on_both_inputs(fuse) -> None:
    made, text, features = encoder("vectors", fuse)
    prompts = made(1000 * text, features)
    assert prompts.shape == (3, 256)
    torch.testing.assert_close(prompts.square().mean(1), torch.ones(3), atol=0.01, rtol=0)
    prompts = made(text, features)
    assert not torch.allclose(made(text.flip(0), features), prompts, atol=0.01)
    assert not torch.allclose(made(text, features.flip(0)), prompts, atol=0.01)


def test_the_mean_weighs_both_halves_alike() -> None:
    made, text, features = encoder("vectors", "mean")
    expected = made.norm((made.text(text) + made.features(features)) / 2)
    torch.testing.assert_close(made(text, features), expected)


@pytest.mark.parametrize(("mode", "fuse"), PAIRS)
def test_a_saved_encoder_gives_the_same_prompts(mode, fuse) -> None:
    made, text, features = encoder(mode, fuse)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.01)
    other = encoder(mode, fuse)[0].eval()
    expected = made.eval()(text, features)
    assert not torch.equal(other(text, features), expected)
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(text, features), expected)
    names = {name.split(".")[0] for name in made.state_dict()}
    parts = {"vectors": set(), "prefix": {"prefix"}, "whole": {"language"}}
    assert names - {"mix"} == {"text", "features", "norm"} | parts[mode]


def test_a_frozen_model_moves_with_the_encoder_in_its_dtype() -> None:
    language = load_language_model(None, None, trainable=False)
    made = PromptEncoder(language.hidden, language=language)
    ids, features = language.tokenize(TEXTS), torch.zeros(3, 15)
    assert torch.equal(made(ids, features), made(language(ids), features))  # without a prefix it takes either
    assert made.double().norm.weight.dtype == torch.float64
    assert {weight.dtype for weight in language.parameters()} == {torch.float32}
    made.to("meta")
    assert language.device == torch.device("meta")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fuse": "sum"}, "fuse must be one of gate, concat, mean, but got 'sum'"),
        ({"prefix": 3}, "prefix must be 0 without a language model"),
        ({"trainable": True}, "trainable must say whether the language model was loaded to be trained"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        PromptEncoder(64, **options)


def test_texts_and_models_of_another_kind_are_refused(tiny) -> None:
    made, vectors, features = encoder("vectors")
    with pytest.raises(ValueError, match="text must be vectors where the encoder has no language model"):
        made(torch.zeros(3, 5, dtype=torch.long), features)
    for mode in ("prefix", "whole"):
        with pytest.raises(ValueError, match="text must be token ids where the language model or a prefix is trained"):
            encoder(mode)[0](vectors, features)
    with pytest.raises(ValueError, match="hidden must be the language model's 64, but got 32"):
        PromptEncoder(32, language=tiny)


@pytest.mark.parametrize("describe", [describe_rule, format_grids])
def test_a_prompt_does_not_depend_on_the_answer(puzzles, tiny, describe) -> None:
    made = PromptEncoder(tiny.hidden).eval()

    def prompt(puzzle: Puzzle) -> torch.Tensor:
        shown, query = puzzle.demonstrations, puzzle.tests[0][0]
        text = VectorCache().get_vectors([hash_puzzle(shown, query)], [describe(shown, query)], tiny)
        inputs, outputs = (draw_canvases([pair[side] for pair in shown], 13)[None] for side in (0, 1))
        mask = torch.ones(1, len(shown), dtype=torch.bool)
        return made(text, compute_puzzle_features(draw_canvases([query], 13), inputs, outputs, mask))

    prompts = [prompt(puzzle) for puzzle in puzzles]
    for puzzle, expected in zip(puzzles, prompts, strict=True):
        query, answer = puzzle.tests[0]
        assert torch.equal(prompt(replace(puzzle, tests=((query, (answer.T + 1) % 10),))), expected)
    assert torch.pdist(torch.cat(prompts)).min() > 0
