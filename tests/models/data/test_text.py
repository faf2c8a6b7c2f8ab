"""Text as windows of bytes, the corpus that is built for it, and what its n-grams cost."""

import json
import platform
import shutil
import sys
from hashlib import sha256
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.models.data import (
    BYTES,
    build_corpus,
    check,
    compute_bits_per_byte,
    cut_windows,
    load,
    read_corpus,
)
from searchlight.models.data.sentences import generate_equations, generate_sentences


def test_targets_are_the_bytes_that_follow() -> None:
    data = np.random.default_rng(0).integers(0, 256, size=1000, dtype=np.uint8)
    samples = cut_windows(data, 33)
    assert samples.inputs.shape == samples.targets.shape == (30, 33)
    assert samples.inputs.dtype == samples.targets.dtype == torch.uint8
    assert np.array_equal(samples.inputs.reshape(-1).numpy(), data[:990])
    assert np.array_equal(samples.targets.reshape(-1).numpy(), data[1:991])
    sizes = {size: cut_windows(data[:size], 8).size for size in (8, 9, 16, 17)}
    assert sizes == {8: 0, 9: 1, 16: 1, 17: 2}  # a window needs a byte after it


def test_no_window_crosses_into_another_domain_or_part(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_bytes(name.encode() * 900 + name.upper().encode() * 100)
    source = load(str(tmp_path), length=30)
    assert [domain.name for domain in source.domains] == ["a", "b"]
    for domain in source.domains:
        for samples, byte in ((domain.train, domain.name), (domain.test, domain.name.upper())):
            assert set(torch.cat([samples.inputs, samples.targets]).unique().tolist()) == {ord(byte)}
        assert (domain.train.size, domain.test.size) == (899 // 30, 99 // 30)


def test_a_subfolder_is_a_domain_of_its_files_in_order(tmp_path: Path) -> None:
    files = {"tales/b.txt": "B", "tales/a.txt": "A", "tales/old/c.txt": "C", "tales/cover.png": "P"}
    for name, letter in (files | {"letters.txt": "L" * 3, ".cache/x.txt": "X" * 3}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(letter * 50)
    letters, tales = load(str(tmp_path), length=9).domains
    assert (letters.name, tales.name) == ("letters", "tales")
    assert tales.train.inputs.numpy().tobytes() == (b"A" * 50 + b"B" * 50 + b"C" * 35)[: 9 * 14]


def test_the_default_corpus_has_five_domains(corpus: Path) -> None:
    source = load("text", folder=corpus)
    assert (source.kind, source.name, source.length) == ("bytes", "text", 128)
    assert (source.classes, source.features, source.outputs) == (BYTES, 0, BYTES)
    assert [domain.name for domain in source.domains] == ["english", "grammar", "math", "python", "tables"]
    assert all(domain.train.size > 1000 and domain.test.size > 100 for domain in source.domains)


def test_each_domain_is_learned_better_from_itself(corpus: Path) -> None:
    domains = load("text", folder=corpus).domains
    flat = {d.name: (d.train.inputs.reshape(-1).numpy(), d.test.inputs.reshape(-1).numpy()) for d in domains}
    for name, (_, test) in flat.items():
        bits = {other: compute_bits_per_byte(train, test)[2] for other, (train, _) in flat.items()}
        assert min(bits, key=bits.__getitem__) == name


def test_the_digest_is_that_of_content_and_names(tmp_path: Path) -> None:
    found = []
    for folder, name, content in (
        ("one", "a", b"abc" * 100),
        ("two", "a", b"abc" * 100),
        ("three", "a", b"abc" * 50 + b"abd" + b"abc" * 49),
        ("four", "b", b"abc" * 100),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.txt").write_bytes(content)
        found.append(load(str(tmp_path / folder), 10).digest)
    assert found[0] == found[1]
    assert len({*found, read_corpus(tmp_path / "one", 9).digest}) == 4


def test_folders_without_enough_text_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, size in (("enough/a.txt", 1290), ("short/a.txt", 1289), ("twice/a.txt", 2000), ("twice/a/b.txt", 2000)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"a" * size)
    (domain,) = load(str(tmp_path / "enough")).domains
    assert (domain.train.size, domain.test.size) == (9, 1)
    for folder, message in (
        ("empty", r"source must be a folder with a \.txt file, .* with none"),
        ("short", "source must have at least 1290 bytes in each domain for windows of 128, but got 1289 in a"),
        ("twice", "source must have each domain once, but got a as a file and as a folder"),
    ):
        for use in (check, load):
            with pytest.raises(ValueError, match=message) as refusal:
                use(str(tmp_path / folder))
            assert "\n" not in str(refusal.value)


@pytest.fixture
def copy(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus, tmp_path / "copy"))


def test_the_corpus_describes_itself(corpus: Path) -> None:
    description = json.loads((corpus / "corpus.json").read_text())
    assert description["python"] == platform.python_version()
    contents = {file.name: file.read_bytes() for file in corpus.glob("*.txt")}
    expected = {name: {"sha256": sha256(text).hexdigest(), "bytes": len(text)} for name, text in contents.items()}
    assert description["files"] == expected
    assert all(200_000 < len(text) <= 500_000 for text in contents.values())


def test_a_second_builder_takes_what_the_first_has_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, folder = Path.rename, tmp_path / "corpus"

    def first(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        build_corpus(target, 2000)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", first)
    for size in (3000, 9000):
        build_corpus(folder, size)
        assert {file.stat().st_size for file in folder.glob("*.txt")} == {2000}
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda folder: (folder / "math.txt").open("ab").write(b"1 + 1 = 3\n"), r"math\.txt differs"),
        (lambda folder: (folder / "math.txt").unlink(), r"math\.txt is missing"),
        (lambda folder: (folder / "more.txt").write_bytes(b"x" * 9999), r"more\.txt is not in it"),
    ],
)
def test_a_corpus_that_was_changed_is_refused(copy: Path, change, complaint: str) -> None:
    change(copy)
    for source, folder in (("text", copy), (str(copy), None)):
        with pytest.raises(ValueError, match=rf"must be the corpus that .*corpus\.json describes, but {complaint}\."):
            load(source, folder=folder)
    (copy / "corpus.json").unlink()
    assert load(str(copy)).kind == "bytes"


@pytest.mark.parametrize("content", ["{", "[]", '{"files": {"math.txt": 1}}'])
def test_a_broken_description_is_refused_in_one_line(copy: Path, content: str) -> None:
    (copy / "corpus.json").write_text(content)
    with pytest.raises(ValueError, match=r"corpus\.json must describe the files of a corpus, but got") as refusal:
        load("text", folder=copy)
    assert "\n" not in str(refusal.value)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"a" * 9999)
    for use in (check, load):
        for folder in (tmp_path, tmp_path / "notes.txt"):
            with pytest.raises(ValueError, match=r"folder must hold the corpus, be empty or not exist yet, but got"):
                use("text", folder=folder)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_missing_library_is_told_before_anything_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ModuleNotFoundError, match="pydoc_data"):
        build_corpus(tmp_path / "corpus")
    assert not list(tmp_path.iterdir())


def test_generated_text_is_the_same_everywhere() -> None:
    for lines, expected in ((generate_sentences(0), "5e689db514f43760"), (generate_equations(0), "903551035a68d0f1")):
        assert sha256("".join(islice(lines, 1000)).encode()).hexdigest()[:16] == expected


def plain(train: bytes, history: bytes, order: int) -> np.ndarray:
    """The probabilities of all bytes after `history`, counted one by one."""
    if order == 0:
        return np.full(256, 1 / 256)
    context = history[len(history) - order + 1 :]
    counts = np.zeros(256)
    for place in range(len(train) - order + 1):
        if train[place : place + order - 1] == context:
            counts[train[place + order - 1]] += 1
    lower = plain(train, history, order - 1)
    if not counts.any():
        return lower
    different = np.count_nonzero(counts)
    return (counts + different * lower) / (counts.sum() + different)


def as_array(content: bytes) -> np.ndarray:
    return np.frombuffer(content, dtype=np.uint8)


few_symbols = st.lists(st.sampled_from(b"abc"), min_size=4, max_size=30).map(bytes)


@settings(max_examples=25)
@given(train=few_symbols, test=few_symbols)
def test_bits_are_those_of_counting_one_by_one(train: bytes, test: bytes) -> None:
    expected = []
    for order in range(1, 5):
        chances = [plain(train, test[:place], order) for place in range(3, len(test))]
        assert np.allclose([chance.sum() for chance in chances], 1)
        expected.append(-np.mean([np.log2(chance[test[3 + place]]) for place, chance in enumerate(chances)]))
    assert compute_bits_per_byte(as_array(train), as_array(test)) == pytest.approx(expected)


def test_english_costs_what_it_should(corpus: Path) -> None:
    baselines = load("text", folder=corpus).baselines["english"]
    assert list(baselines) == ["1-gram", "2-gram", "3-gram", "4-gram"]
    assert list(baselines.values()) == pytest.approx([4.68, 3.34, 2.47, 2.02], abs=0.3)
    assert sorted(baselines.values(), reverse=True) == list(baselines.values())


def test_too_few_bytes_are_refused() -> None:
    data = as_array(b"abcdefgh")
    with pytest.raises(ValueError, match="test must have at least 4 bytes, but got 3"):
        compute_bits_per_byte(data, data[:3])
    assert np.isfinite(compute_bits_per_byte(as_array(b"aaaa" * 10), as_array(b"zzzz" * 10))).all()  # never seen before
