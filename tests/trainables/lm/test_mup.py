"""The muP parametrization of the task `lm`."""

from typing import Any

import pytest
import torch

from searchlight.models.lm.transformer import BASE_HEAD, Transformer
from searchlight.trainables.context import Context
from searchlight.trainables.lm import LmTask
from searchlight.trainables.lm.config import LmConfig
from searchlight.trainables.lm.task import scale_matrix_lr
from searchlight.trainables.preflight.coordinates import check_coordinates
from tests.trainables.lm.small_lm import SMALL, build_small_corpus, make_lm


def test_model_at_the_base_width_is_the_standard_one():
    width = 2 * BASE_HEAD
    torch.manual_seed(0)
    standard = Transformer(width, 1, 2)
    torch.manual_seed(0)
    scaled = Transformer(width, 1, 2, base_width=width)
    symbols = torch.arange(20)[None]
    assert torch.equal(standard(symbols), scaled(symbols))


def test_embedding_keeps_its_entries_and_logits_shrink():
    torch.manual_seed(0)
    small, large = (Transformer(width, 1, 2, base_width=64) for width in (64, 1024))
    spread = [model.embedding.weight.std().item() for model in (small, large)]
    assert spread[0] == pytest.approx(spread[1], rel=0.05)
    matrices = [model.blocks[0].attention.inputs.weight.std().item() for model in (small, large)]
    assert matrices[0] == pytest.approx(4 * matrices[1], rel=0.05)
    symbols = torch.arange(100)[None]
    assert small(symbols).std() > 2 * large(symbols).std()


@pytest.mark.parametrize(("optimizer", "factor"), [("adamw", 1 / 4), ("muon", 1 / 2)])
def test_rate_of_matrices_falls_with_the_width_and_their_decay_stays(optimizer, factor, tmp_path):
    build_small_corpus(tmp_path)
    wide: dict[str, Any] = {"width": 32, "base_width": 8, "optimizer": optimizer, "lr": 0.01, "weight_decay": 0.1}
    assert scale_matrix_lr(LmConfig(**{**SMALL, **wide})) == factor
    assert scale_matrix_lr(LmConfig(**{**SMALL, **wide, "base_width": None})) == 1
    optimizers = make_lm(tmp_path, **wide).task.optimizers
    [group], [others] = optimizers["matrices"].param_groups, optimizers["embedding"].param_groups
    assert group["initial_lr"] == pytest.approx(0.01 * factor)
    assert group["initial_lr"] * group["weight_decay"] == pytest.approx(0.001)
    assert others["initial_lr"] == LmConfig().embedding_lr


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_activations_grow_without_mup_and_not_with_it(optimizer, tmp_path):
    build_small_corpus(tmp_path)
    steepest = {}
    for base_width in (None, 16):
        sizes = []
        for width in (16, 128):
            config = {**SMALL, "width": width, "heads": 2, "base_width": base_width, "optimizer": optimizer}
            config |= {"lr": 0.02, "warmup": 0.0, "samples": 80, "depth": 1, "test_samples": 1}
            sizes.append((width, LmConfig(**config).model_dump(mode="json")))
        found = check_coordinates(lambda: LmTask, sizes, Context("cpu", files=tmp_path))
        steepest[base_width] = {each.subject for each in found if each.name == "grows-with-size"}
    assert any(name.startswith("model.blocks.0") for name in steepest[None])
    assert steepest[16] == set()
