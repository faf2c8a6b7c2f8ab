from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from models.liquid.data import build_corpus


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default corpus, which takes a second to build."""
    folder = tmp_path_factory.mktemp("data") / "corpus"
    build_corpus(folder)
    return folder
