import importlib.machinery
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from models.liquid.data import check, load

ROWS = {
    "some/tales": {"train": [{"text": "once upon a time"}] * 50},
    "some/facts": {"train": [{"text": "it is so"}] * 50},
    "some/tables": {"train": [{"number": 1}]},
    "some/unsplit": {"all": [{"text": "x"}]},
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict:
    """A stand-in for the package, with rows of its own."""
    known = dict(ROWS)
    package = types.ModuleType("datasets")
    package.__spec__ = importlib.machinery.ModuleSpec("datasets", None)
    package.load_dataset = lambda path, config, streaming: known[path if config is None else f"{path}:{config}"]
    monkeypatch.setitem(sys.modules, "datasets", package)
    return known


def test_without_the_package_it_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    for use in (check, load):
        with pytest.raises(ValueError, match=r"hub:ylecun/mnist'\. Install it: pip install datasets\."):
            use("hub:ylecun/mnist")


@pytest.mark.usefixtures("hub")
def test_texts_become_domains() -> None:
    tales, facts = load("hub:some/tales+some/facts", length=8).domains
    assert (tales.name, facts.name) == ("some/tales", "some/facts")
    assert tales.train.inputs.numpy().tobytes().startswith(b"once upon a time\nonce upon")


def test_a_config_is_named_after_a_colon(hub: dict) -> None:
    hub["some/tales:short"] = {"train": [{"text": "the end"}] * 50}
    (domain,) = load("hub:some/tales:short", length=8).domains
    assert domain.train.inputs.numpy().tobytes().startswith(b"the end\n")


@pytest.mark.parametrize(("mode", "features"), [("L", 5), ("RGB", 15)])
def test_images_become_sequences_of_rows(hub: dict, mode: str, features: int) -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, size=(6, 7, 5, len(mode)), dtype=np.uint8).squeeze()
    rows = [{"image": Image.fromarray(image, mode=None), "label": label % 3} for label, image in enumerate(pixels)]
    hub["some/images"] = {"train": rows[:4], "test": rows[4:]}
    source = load("hub:some/images")
    (domain,) = source.domains
    assert (source.kind, source.classes, source.features, source.length) == ("labels", 3, features, 7)
    assert np.array_equal(np.rint(domain.test.inputs.numpy() * 255), pixels[4:].reshape(2, 7, features))
    assert domain.test.targets.tolist() == [1, 2]
    hub["some/images"]["test"].append({"image": rows[0]["image"], "label": -1})
    with pytest.raises(ValueError, match="source must have labels of 0 or more, but got a negative"):
        load("hub:some/images")
    hub["some/images"]["test"].append({"image": Image.new("L", (1, 1)), "label": 0})
    with pytest.raises(ValueError, match="source must have images of one size, but got several"):
        load("hub:some/images")


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("some/tables", "source must have rows with a text, .*, but got number in some/tables"),
        ("some/unsplit", "source must have a split train, but got all in some/unsplit"),
        ("", "source must name a data set, hub:owner/name, but got 'hub:'"),
        ("some/tales+", r"source must name a data set, hub:owner/name, but got 'hub:some/tales\+'"),
    ],
)
def test_what_cannot_be_used_is_refused(names: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(f"hub:{names}", length=8)


def test_the_real_package_reads_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="datasets is an option that is not installed")
    (tmp_path / "train.txt").write_text("once upon a time\n" * 50)
    (domain,) = load(f"hub:{tmp_path}", length=8).domains
    assert domain.train.inputs.numpy().tobytes().startswith(b"once upon a time\nonce upon")
