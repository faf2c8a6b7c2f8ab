import gzip
from pathlib import Path

import numpy as np
import pytest

from models.liquid.data import check, load


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


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"source must be a folder with train-images-idx3-ubyte, .* which is none"):
        check(f"idx:{tmp_path / 'absent'}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "but got a file that begins with nothing"),
        (b"\x00\x00\x08\x03\x00", "but got a file that begins with 00 00 08 03"),
        (b"<html>not found</html>", "but got a file that begins with 3c 68 74 6d"),
        (b"\x00\x00\x0d\x03" + bytes(12), "but got a file that begins with 00 00 0d 03"),
    ],
)
def test_a_file_of_another_kind_is_refused_before_anything_is_loaded(
    tmp_path: Path, content: bytes, message: str
) -> None:
    write(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(ValueError, match=f"must be an IDX file of unsigned bytes, {message}") as refusal:
        check(str(tmp_path))
    assert "\n" not in str(refusal.value)


def test_a_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    check(str(tmp_path))
    with pytest.raises(ValueError, match="must be an IDX file of unsigned bytes, but got 287 bytes for 12 x 6 x 4"):
        load(str(tmp_path))


def test_a_packed_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    write(tmp_path, packed=True)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"ubyte\.gz must be an IDX file of unsigned bytes, but got .*ended"):
        load(str(tmp_path))


def test_labels_without_images_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(encode(np.zeros(4)))
    with pytest.raises(ValueError, match="must have one label for each image, but got 5 images and 4 labels"):
        check(str(tmp_path))


def test_parts_with_images_of_other_sizes_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(encode(np.zeros((5, 4, 4))))
    with pytest.raises(ValueError, match=r"source must have images of one size, but got \(6, 4\) .* and \(4, 4\)"):
        load(str(tmp_path))
