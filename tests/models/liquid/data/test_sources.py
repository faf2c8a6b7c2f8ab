from pathlib import Path

import pytest
import torch

from models.liquid.data import Samples, check, load


@pytest.mark.parametrize("source", ["digit", "data", "./data", "idx:mnist", "", "http://x"])
def test_what_is_no_source_is_refused(source: str) -> None:
    for use in (check, load):
        with pytest.raises(ValueError, match="source must be digits, text, series, idx:PATH, hub:NAME, or the"):
            use(source)


def test_what_will_work_passes_and_text_without_its_corpus_does_not(corpus: Path, tmp_path: Path) -> None:
    check("digits")
    check("series")
    check("text", folder=corpus)
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ValueError, match="must have a corpus to be text, but there is none in"):
            check("text", folder=folder)
    assert not list(tmp_path.iterdir()), "it is not built"


def test_text_needs_a_folder() -> None:
    with pytest.raises(ValueError, match="folder must be given for text, but got None"):
        check("text")


def test_rows_are_taken_in_their_order() -> None:
    samples = Samples(torch.arange(12.0).reshape(4, 3, 1), torch.arange(4), torch.arange(12.0).reshape(4, 3, 1))
    taken = samples.rows(torch.tensor([2, 0]))
    assert taken.targets.tolist() == [2, 0]
    assert torch.equal(taken.inputs, taken.dt)
    assert taken.inputs[:, 0, 0].tolist() == [6, 0]
    assert (samples.size, taken.size) == (4, 2)
    assert Samples(samples.inputs, samples.targets).rows(slice(1)).dt is None
