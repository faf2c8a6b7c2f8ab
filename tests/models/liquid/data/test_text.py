from pathlib import Path

import numpy as np
import pytest
import torch

from models.liquid.data import BYTES, bits_per_byte, check, load, read_corpus, windows


def text_of(samples) -> bytes:
    return samples.inputs.numpy().tobytes()


def test_targets_are_the_bytes_that_follow() -> None:
    data = np.random.default_rng(0).integers(0, 256, size=1000, dtype=np.uint8)
    samples = windows(data, 33)
    assert samples.inputs.shape == samples.targets.shape == (30, 33)
    assert samples.inputs.dtype == samples.targets.dtype == torch.uint8
    assert np.array_equal(samples.inputs.reshape(-1).numpy(), data[:990])
    assert np.array_equal(samples.targets.reshape(-1).numpy(), data[1:991])


@pytest.mark.parametrize(("size", "count"), [(8, 0), (9, 1), (16, 1), (17, 2)])
def test_a_window_needs_a_byte_after_it(size: int, count: int) -> None:
    assert windows(np.zeros(size, dtype=np.uint8), 8).size == count


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
    (tmp_path / "tales" / "old").mkdir(parents=True)
    (tmp_path / "tales" / "b.txt").write_bytes(b"B" * 50)
    (tmp_path / "tales" / "a.txt").write_bytes(b"A" * 50)
    (tmp_path / "tales" / "old" / "c.txt").write_bytes(b"C" * 50)
    (tmp_path / "tales" / "cover.png").write_bytes(b"P" * 50)
    (tmp_path / "letters.txt").write_bytes(b"L" * 150)
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "x.txt").write_bytes(b"X" * 150)
    letters, tales = load(str(tmp_path), length=9).domains
    assert (letters.name, tales.name) == ("letters", "tales")
    assert text_of(tales.train) == (b"A" * 50 + b"B" * 50 + b"C" * 35)[: 9 * 14]


def test_the_default_corpus_has_five_domains(corpus: Path) -> None:
    source = load("text", folder=corpus)
    assert (source.kind, source.name) == ("bytes", "text")
    assert (source.classes, source.features, source.outputs) == (BYTES, 0, BYTES)
    assert [domain.name for domain in source.domains] == ["english", "grammar", "math", "python", "tables"]
    assert all(domain.train.size > 1000 and domain.test.size > 100 for domain in source.domains)
    assert source.length == 128


def test_each_domain_is_learned_better_from_itself(corpus: Path) -> None:
    domains = load("text", folder=corpus).domains
    flat = {d.name: (d.train.inputs.reshape(-1).numpy(), d.test.inputs.reshape(-1).numpy()) for d in domains}
    for name, (_, test) in flat.items():
        bits = {other: bits_per_byte(train, test)[2] for other, (train, _) in flat.items()}
        assert min(bits, key=bits.__getitem__) == name


def test_the_digest_is_that_of_content_and_names(tmp_path: Path) -> None:
    for folder in ("one", "two", "three", "four"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_bytes(b"abc" * 100)
    (tmp_path / "three" / "a.txt").write_bytes(b"abc" * 50 + b"abd" + b"abc" * 49)
    (tmp_path / "four" / "a.txt").rename(tmp_path / "four" / "b.txt")
    one, two, three, four = (load(str(tmp_path / folder), 10).digest for folder in ("one", "two", "three", "four"))
    assert one == two
    assert len({one, three, four}) == 3
    assert read_corpus(tmp_path / "one", 9).digest != one


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "a.txt").write_bytes(b"a" * 1289)
    (tmp_path / "twice" / "a").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for name in ("a.txt", "a/b.txt"):
        (tmp_path / "twice" / name).write_bytes(b"a" * 2000)
    for folder, message in (
        ("absent", "source must be a folder of text files, but got .*, which is no folder"),
        ("empty", r"source must be a folder with a \.txt file, .* with none"),
        ("short", "source must have at least 1290 bytes in each domain for windows of 128, but got 1289 in a"),
        ("twice", "source must have each domain once, but got a as a file and as a folder"),
    ):
        for use in (check, load):
            with pytest.raises(ValueError, match=message) as refusal:
                use(str(tmp_path / folder))
            assert "\n" not in str(refusal.value)


def test_the_smallest_domain_that_is_enough_is_enough(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a" * 1290)
    (domain,) = load(str(tmp_path)).domains
    assert (domain.train.size, domain.test.size) == (9, 1)
