import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from models.arc.prompt import load_language_model

TEXTS = ["The grid is mirrored.", "Cells are moved. Sizes stay.", "Nothing is shown."]


def test_the_tiny_model_is_the_same_each_time_and_draws_nothing() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, other = (load_language_model(None, None, trainable) for trainable in (False, True))
    assert torch.equal(torch.rand(3), expected)
    vectors = one(one.tokenize(TEXTS))
    assert vectors.shape == (3, one.hidden)
    assert vectors.dtype == torch.float32
    assert torch.equal(vectors, other(other.tokenize(TEXTS)).detach())
    assert (one.name, one.revision) == (other.name, other.revision)


def test_the_tiny_model_tells_texts_apart(tiny) -> None:
    vectors = tiny(tiny.tokenize(["Cells are moved.", "Cells are mover.", "moved are Cells."]))
    assert torch.pdist(vectors).min() > 0.1


def test_texts_are_read_alone_as_they_are_in_company(tiny) -> None:
    ids = tiny.tokenize(TEXTS)
    assert (ids[2] == -1).sum() == len(TEXTS[1]) - len(TEXTS[2])
    alone = torch.cat([tiny(tiny.tokenize([text])) for text in TEXTS])
    torch.testing.assert_close(tiny(ids), alone, atol=1e-5, rtol=1e-5)


def test_long_texts_are_cut_off() -> None:
    short = load_language_model(max_tokens=8)
    assert short.tokenize(["The grid is mirrored."]).shape == (1, 8)


def test_a_text_without_tokens_is_refused(tiny) -> None:
    with pytest.raises(ValueError, match="texts must have a token each, but got ''"):
        tiny.tokenize(["a", ""])


def test_a_prefix_gets_gradients_through_frozen_weights(tiny) -> None:
    prefix = torch.randn(4, tiny.hidden, requires_grad=True)
    ids = tiny.tokenize(TEXTS)
    changed = tiny(ids, prefix)
    assert not torch.allclose(changed, tiny(ids))
    changed.square().sum().backward()
    assert prefix.grad.norm(dim=1).min() > 0
    assert all(weight.grad is None for weight in tiny.parameters())
    assert not tiny(ids).requires_grad


def test_vectors_of_a_frozen_model_do_not_depend_on_autocast(tiny) -> None:
    ids = tiny.tokenize(TEXTS)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(tiny(ids), tiny(ids))
        low = tiny(ids)
    assert torch.equal(low, tiny(ids))


def test_a_frozen_model_stays_in_evaluation_mode(saved) -> None:
    frozen, trained = (load_language_model(str(saved), None, trainable) for trainable in (False, True))
    for language in (frozen, trained):
        language.train()
    assert not any(module.training for module in frozen.modules())
    assert all(module.training for module in trained.modules())


def test_a_saved_model_is_loaded_from_its_folder_in_the_dtype_that_its_use_needs(saved) -> None:
    frozen, trained = (load_language_model(str(saved), None, trainable) for trainable in (False, True))
    assert {weight.dtype for weight in frozen.parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in trained.parameters()} == {torch.float32}
    assert not any(weight.requires_grad for weight in frozen.parameters())
    assert all(weight.requires_grad for weight in trained.parameters())
    assert (frozen.hidden, frozen.max_tokens) == (32, 128)
    ids = frozen.tokenize(TEXTS)
    assert ids[2, : len(TEXTS[2])].tolist() == [ord(letter) - 32 for letter in TEXTS[2]]
    vectors = frozen(ids)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors, trained(ids).detach(), atol=0.05, rtol=0.05)
    assert torch.equal(vectors, load_language_model(str(saved), None, False)(ids))


def test_every_weight_that_is_trained_gets_a_gradient(saved) -> None:
    for model in (None, str(saved)):
        language = load_language_model(model, None, trainable=True)
        vectors = language(language.tokenize(TEXTS))
        (vectors * torch.randn(vectors.shape)).sum().backward()
        without = [name for name, weight in language.named_parameters() if not weight.grad.norm() > 0]
        assert without == []


def test_a_folders_revision_follows_its_files(saved, tmp_path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    before = load_language_model(str(folder), None, False).revision
    assert before == load_language_model(str(saved), None, False).revision
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    assert load_language_model(str(folder), None, False).revision != before


def hub(saved: Path, home: Path) -> dict[str, str]:
    """The environment of a process that finds a model in the hub's cache, and no network."""
    repository = home / "models--some--small"
    shutil.copytree(saved, repository / "snapshots" / "c0ffee")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee")
    return os.environ | {"HF_HUB_CACHE": str(home), "HF_HUB_OFFLINE": "1"}


SCRIPT = """
import sys, torch
from models.arc.prompt import load_language_model
language = load_language_model("some/small", None, False)
assert language.revision == "c0ffee", language.revision
torch.save(language(language.tokenize(["Cells are moved."])), sys.argv[1])
for name, revision in (("some/other", None), ("some/small", "v2")):
    try:
        load_language_model(name, revision, False)
        sys.exit("it must be refused")
    except ValueError as error:
        print(error)
"""


def test_a_model_of_the_hub_is_read_from_its_cache_without_a_network_or_a_word(saved, tmp_path) -> None:
    file = tmp_path / "vector.pt"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(file)],
        env=hub(saved, tmp_path / "hub"),
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("cannot be had" in line and "give its folder" in line for line in lines)
    language = load_language_model(str(saved), None, False)
    assert torch.equal(torch.load(file), language(language.tokenize(["Cells are moved."])))


def broken(saved: Path, folder: Path, damage: str) -> str:
    shutil.copytree(saved, folder)
    if damage == "weights":
        from safetensors.torch import load_file, save_file

        weights = load_file(folder / "model.safetensors")
        weights.pop("model.norm.weight")
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    elif damage == "half":
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:1000])
    else:
        # Without its files, transformers makes a tokenizer that knows no word.
        (folder / damage).unlink()
    return str(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("config.json", "has none"),
        ("weights", "lacks 1, among them norm.weight"),
        ("half", "must hold a language model and its tokenizer"),
        ("model.safetensors", "must hold a language model and its tokenizer"),
        ("tokenizer.json", "must hold a tokenizer"),
    ],
)
def test_a_folder_that_holds_no_whole_model_is_refused_in_one_line(saved, tmp_path, damage, message, capfd) -> None:
    folder = broken(saved, tmp_path / "broken", damage)
    with pytest.raises(ValueError, match=message) as caught:
        load_language_model(folder, None, False)
    assert folder in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("model", ["/no/such/folder", "./none", "~/none-of-it", "a/b/c", ""])
def test_a_folder_that_is_not_there_is_refused(model) -> None:
    with pytest.raises(ValueError, match="must be a folder that exists or an id on the Hugging Face hub"):
        load_language_model(model, None, False)


def test_only_a_model_of_the_hub_has_revisions(saved) -> None:
    for model in (None, str(saved)):
        with pytest.raises(ValueError, match="revision must name a version on the Hugging Face hub, but got 'main'"):
            load_language_model(model, "main", False)
