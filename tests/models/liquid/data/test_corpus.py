import json
import platform
import shutil
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from models.liquid.data import build_corpus, check, load
from models.liquid.data.sentences import INTRANSITIVE, NOUNS, SAYING, TRANSITIVE, equations, sentences


@pytest.fixture
def copy(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus, tmp_path / "copy"))


def test_the_corpus_describes_itself(corpus: Path) -> None:
    description = json.loads((corpus / "corpus.json").read_text())
    assert description["python"] == platform.python_version()
    assert sorted(description["files"]) == sorted(file.name for file in corpus.glob("*.txt"))
    for name, entry in description["files"].items():
        content = (corpus / name).read_bytes()
        assert entry == {"sha256": sha256(content).hexdigest(), "bytes": len(content)}
        assert 200_000 < len(content) <= 500_000


def test_a_corpus_is_the_same_when_it_is_built_again_and_leaves_nothing_else(corpus: Path, tmp_path: Path) -> None:
    build_corpus(tmp_path / "new" / "corpus")
    assert load("text", folder=tmp_path / "new" / "corpus").digest == load("text", folder=corpus).digest
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["corpus"]


def test_a_corpus_is_built_once(tmp_path: Path) -> None:
    build_corpus(tmp_path / "corpus", bytes_per_domain=3000)
    build_corpus(tmp_path / "corpus", bytes_per_domain=9000)
    assert {file.stat().st_size for file in (tmp_path / "corpus").glob("*.txt")} == {3000}


def test_one_who_comes_second_takes_what_the_first_has_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, folder = Path.rename, tmp_path / "corpus"

    def first(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        build_corpus(target, 2000)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", first)
    build_corpus(folder, 3000)
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
        with pytest.raises(ValueError, match=r"folder must hold the corpus, be empty or not exist yet, but got"):
            use("text", folder=tmp_path)
        with pytest.raises(ValueError, match=r"folder must hold the corpus, be empty or not exist yet, but got"):
            use("text", folder=tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_missing_library_is_told_of_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ModuleNotFoundError, match="pydoc_data"):
        build_corpus(tmp_path / "corpus")
    assert not list(tmp_path.iterdir())


def test_equations_are_right() -> None:
    lines = equations(0)
    for _ in range(500):
        left, right = next(lines).split(" = ")
        assert eval(left) == int(right)


def test_sentences_agree() -> None:
    """The first noun of a sentence and a verb right after it have the same number."""
    number = {word: n for words in (NOUNS, INTRANSITIVE, SAYING, TRANSITIVE) for n in (0, 1) for word in words[n]}
    drawn, pairs = sentences(0), 0
    for _ in range(500):
        words = next(drawn).split()
        assert words[-1] == "."
        noun = next(place for place, word in enumerate(words) if word in number)
        if words[noun + 1] != "that":
            assert number[words[noun]] == number[words[noun + 1]]
            pairs += 1
    assert pairs > 200


def test_generated_text_is_the_same_everywhere() -> None:
    for lines, expected in ((sentences(0), "5e689db514f43760"), (equations(0), "903551035a68d0f1")):
        assert sha256("".join(next(lines) for _ in range(1000)).encode()).hexdigest()[:16] == expected
