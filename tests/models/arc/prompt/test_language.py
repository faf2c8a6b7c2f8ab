import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from searchlight.models.arc.prompt import load_language_model

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


def test_texts_are_read_alone_as_they_are_in_company(tiny) -> None:
    ids = tiny.tokenize(TEXTS)
    assert (ids[2] == -1).sum() == len(TEXTS[1]) - len(TEXTS[2])
    alone = torch.cat([tiny(tiny.tokenize([text])) for text in TEXTS])
    torch.testing.assert_close(tiny(ids), alone, atol=1e-5, rtol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        low = tiny(ids)
    assert torch.equal(low, tiny(ids))
    assert torch.pdist(tiny(tiny.tokenize(["Cells are moved.", "Cells are mover.", "moved are Cells."]))).min() > 0.1
    assert load_language_model(max_tokens=8).tokenize(["The grid is mirrored."]).shape == (1, 8)
    with pytest.raises(ValueError, match="texts must have a token each, but got ''"):
        tiny.tokenize(["a", ""])


def test_a_saved_model_is_loaded_in_the_dtype_of_its_use(saved) -> None:
    frozen, trained = (load_language_model(str(saved), None, trainable).train() for trainable in (False, True))
    for language, dtype, trains in ((frozen, torch.bfloat16, False), (trained, torch.float32, True)):
        assert {(weight.dtype, weight.requires_grad) for weight in language.parameters()} == {(dtype, trains)}
        assert {module.training for module in language.model.modules()} == {trains}
    assert (frozen.hidden, frozen.max_tokens) == (32, 128)
    ids = frozen.tokenize(TEXTS)
    assert ids[2, : len(TEXTS[2])].tolist() == [ord(letter) - 32 for letter in TEXTS[2]]
    vectors, found = frozen(ids), trained(ids)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors, found.detach(), atol=0.05, rtol=0.05)
    (found * torch.randn(found.shape)).sum().backward()
    assert [name for name, weight in trained.named_parameters() if not weight.grad.norm() > 0] == []


def test_a_folders_revision_follows_its_files(saved, tmp_path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    before = load_language_model(str(folder), None, False).revision
    assert before == load_language_model(str(saved), None, False).revision
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    assert load_language_model(str(folder), None, False).revision != before


SCRIPT = """
import sys, torch
from searchlight.models.arc.prompt import load_language_model
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


@pytest.mark.slow
def test_a_model_of_the_hub_is_read_from_its_cache_offline(saved, tmp_path) -> None:
    repository = tmp_path / "hub" / "models--some--small"
    shutil.copytree(saved, repository / "snapshots" / "c0ffee")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee")
    file = tmp_path / "vector.pt"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(file)],
        env=os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"},
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
        ("weights", "lacks 1, among them norm.weight"),
        ("half", "must hold a language model and its tokenizer"),
        ("model.safetensors", "must hold a language model and its tokenizer"),
        ("tokenizer.json", "must hold a tokenizer"),
    ],
)
def test_a_folder_without_a_whole_model_is_refused_in_one_line(saved, tmp_path, damage, message, capfd) -> None:
    folder = broken(saved, tmp_path / "broken", damage)
    with pytest.raises(ValueError, match=message) as caught:
        load_language_model(folder, None, False)
    assert folder in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_texts_that_are_cut_off_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    ids = load_language_model(max_tokens=5).tokenize(["short", "too long", "again too long"])
    assert ids.shape == (3, 5)
    assert "max_tokens=5 cuts off 2 of 3 texts (67 %). Raise it." in caplog.text
