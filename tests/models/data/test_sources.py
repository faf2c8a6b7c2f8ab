"""Digits, series, IDX files and data sets of the hub become sequences."""

import gzip
import importlib.machinery
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from searchlight.models.data import Source, check, load
from searchlight.models.data.autoregression import Series, compute_squared_errors


def test_check_refuses_text_without_its_corpus(corpus: Path, tmp_path: Path) -> None:
    check("digits")
    check("series")
    check("text", folder=corpus)
    for folder in (tmp_path, tmp_path / "absent", None):
        with pytest.raises(ValueError, match="must have a corpus to be text, but there is none in"):
            check("text", folder=folder)
    assert not list(tmp_path.iterdir()), "it is not built"


DIGEST = "27fad7acaa4b924903907cf10e25706775069362936c4f84da499eba675cd212"


@pytest.fixture(scope="module")
def digits() -> Source:
    return load("digits")


def rows(*parts: torch.Tensor) -> list[bytes]:
    return sorted(row.numpy().tobytes() for part in parts for row in part)


def test_digits_are_sequences_of_eight_rows(digits: Source) -> None:
    (domain,) = digits.domains
    assert (digits.kind, digits.name, digits.length) == ("labels", "digits", 8)
    assert (digits.classes, digits.features, digits.outputs) == (10, 8, 10)
    for samples, count in ((domain.train, 1437), (domain.test, 360)):
        assert samples.inputs.shape == (count, 8, 8)
        assert (samples.inputs.dtype, samples.targets.dtype, samples.dt) == (torch.float32, torch.int64, None)
        assert samples.inputs.aminmax() == (0, 1)
    assert (digits.digest, digits.baselines) == (DIGEST, {})


def test_every_digit_is_in_one_part_with_its_label(digits: Source) -> None:
    (domain,) = digits.domains
    data = load_digits()
    images = data.images.astype(np.float32)
    assert rows(domain.train.inputs, domain.test.inputs) == rows(torch.from_numpy(images / 16))
    assert not set(rows(domain.train.inputs)) & set(rows(domain.test.inputs))
    labels = {image.tobytes(): label for image, label in zip(images, data.target, strict=True)}
    for image, label in zip(domain.test.inputs * 16, domain.test.targets, strict=True):
        assert labels[image.numpy().tobytes()] == label
    trained, tested = domain.train.targets.bincount(), domain.test.targets.bincount()
    assert ((trained + tested) / 5 - tested).abs().max() < 1


SERIES_DIGEST = "ee7222f72b190482f2a7aadf55dbaff877ce1562493fada9b9c9523daaae0b10"


@pytest.fixture(scope="module")
def series():
    return load("series")


def test_series_are_five_domains_of_one_value(series) -> None:
    assert (series.kind, series.classes, series.features, series.outputs) == ("values", 0, 1, 1)
    assert [domain.name for domain in series.domains] == ["sines", "mackey-glass", "lorenz", "spring", "van-der-pol"]
    for domain in series.domains:
        for samples, count in ((domain.train, 256), (domain.test, 64)):
            assert {tensor.shape for tensor in samples} == {(count, 128, 1)}
            assert {tensor.dtype for tensor in samples} == {torch.float32}
            assert all(tensor.isfinite().all() for tensor in samples)
            assert torch.equal(samples.inputs[:, 1:], samples.targets[:, :-1])
        inputs = domain.train.inputs
        assert inputs.mean().abs() < 1e-3
        assert inputs.std() == pytest.approx(1, abs=1e-3)
        assert inputs[:, -20:].std() > 0.1
        both = torch.cat([inputs, domain.test.inputs])
        assert len(both.unique(dim=0)) == len(both)


def test_the_same_series_come_every_time(series) -> None:
    assert series.digest == SERIES_DIGEST
    assert load("series", length=16).digest != SERIES_DIGEST


def test_linear_models_beat_repeating_and_the_step_helps_them(series) -> None:
    assert set(series.baselines) == {domain.name for domain in series.domains}
    for errors in series.baselines.values():
        assert 0 < errors["ar_dt"] < errors["ar"] < errors["repeat"] < 1


def test_a_series_that_is_linear_is_predicted_by_a_linear_model() -> None:
    inputs = torch.randn(200, 20, 1, generator=torch.Generator().manual_seed(0))
    targets = 0.5 * inputs.roll(1, dims=1) + 0.25 * inputs
    targets[:, 0] = 0.25 * inputs[:, 0]
    parts = [
        Series(*(t[rows].numpy() for t in (inputs, targets, torch.ones_like(inputs))))
        for rows in (slice(100), slice(100, 200))
    ]
    errors = compute_squared_errors(*parts)
    assert errors["ar"] == pytest.approx(0, abs=1e-10)
    assert errors["repeat"] == pytest.approx(0.75**2 + 0.5**2, rel=0.1)


def encode(array: np.ndarray) -> bytes:
    header = np.array([0x0800 | array.ndim, *array.shape], dtype=">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def write(folder: Path, packed: bool = False, dash: str = "-") -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 12), ("t10k", 5)):
        arrays[f"{part}-images{dash}idx3-ubyte"] = random.integers(0, 256, size=(count, 6, 4))
        arrays[f"{part}-labels{dash}idx1-ubyte"] = np.arange(count) % 3
    for name, array in arrays.items():
        content = encode(array)
        (folder / f"{name}{'.gz' if packed else ''}").write_bytes(gzip.compress(content) if packed else content)
    return arrays


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dash", ["-", "."])
def test_images_are_read_back_as_sequences_of_rows(tmp_path: Path, packed: bool, dash: str) -> None:
    arrays = write(tmp_path, packed, dash)
    source = load(f"idx:{tmp_path}")
    (domain,) = source.domains
    assert (source.kind, source.classes, source.features, source.outputs) == ("labels", 3, 4, 3)
    for samples, part in ((domain.train, "train"), (domain.test, "t10k")):
        assert np.array_equal(np.rint(samples.inputs.numpy() * 255), arrays[f"{part}-images{dash}idx3-ubyte"])
        assert np.array_equal(samples.targets.numpy(), arrays[f"{part}-labels{dash}idx1-ubyte"])
    assert source.digest == load(str(tmp_path)).digest


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    write(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=rf"source must have a file {name} or {name}\.gz, but got .* without"):
        check(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with nothing"),
        (b"\x00\x00\x08\x03\x00", "begins with 00 00 08 03"),
        (b"\x00\x00\x0d\x03" + bytes(12), "begins with 00 00 0d 03"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    write(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(ValueError, match=f"must be an IDX file of .*, but got a file that {message}") as refusal:
        check(str(tmp_path))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("packed", "cut", "message"), [(False, 1, "287 bytes for 12 x 6 x 4"), (True, 20, ".*ended")])
def test_a_file_that_was_cut_short_is_refused(tmp_path: Path, packed: bool, cut: int, message: str) -> None:
    write(tmp_path, packed)
    file = tmp_path / f"train-images-idx3-ubyte{'.gz' if packed else ''}"
    file.write_bytes(file.read_bytes()[:-cut])
    with pytest.raises(ValueError, match=f"{file.name} must be an IDX file of unsigned bytes, but got {message}"):
        load(str(tmp_path))


def test_labels_without_images_and_other_sizes_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(encode(np.zeros((5, 4, 4))))
    with pytest.raises(ValueError, match=r"source must have images of one size, but got \(6, 4\) .* and \(4, 4\)"):
        load(str(tmp_path))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(encode(np.zeros(4)))
    with pytest.raises(ValueError, match="must have one label for each image, but got 5 images and 4 labels"):
        check(str(tmp_path))


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


def test_texts_become_domains_named_with_their_configs(hub: dict) -> None:
    hub["some/tales:short"] = {"train": [{"text": "the end"}] * 50}
    tales, facts = load("hub:some/tales+some/facts", length=8).domains
    assert (tales.name, facts.name) == ("some/tales", "some/facts")
    assert tales.train.inputs.numpy().tobytes().startswith(b"once upon a time\nonce upon")
    (domain,) = load("hub:some/tales:short", length=8).domains
    assert domain.train.inputs.numpy().tobytes().startswith(b"the end\n")


@pytest.mark.parametrize(("mode", "features"), [("L", 5), ("RGB", 15)])
def test_images_become_sequences_of_rows(hub: dict, mode: str, features: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, size=(6, 7, 5, len(mode)), dtype=np.uint8).squeeze()
    rows = [{"image": Image.fromarray(image), "label": label % 3} for label, image in enumerate(pixels)]
    hub["some/images"] = {"train": rows[:4], "test": rows[4:]}
    source = load("hub:some/images")
    (domain,) = source.domains
    assert (source.kind, source.classes, source.features, source.length) == ("labels", 3, features, 7)
    assert np.array_equal(np.rint(domain.test.inputs.numpy() * 255), pixels[4:].reshape(2, 7, features))
    assert domain.test.targets.tolist() == [1, 2]
    for image, label, message in (
        (rows[0]["image"], -1, "source must have labels of 0 or more, but got a negative"),
        (Image.new("L", (1, 1)), 0, "source must have images of one size, but got several"),
    ):
        hub["some/images"]["test"].append({"image": image, "label": label})
        with pytest.raises(ValueError, match=message):
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
