from pathlib import Path

import pytest

from searchlight.models.data import build_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default corpus, which takes a second to build."""
    folder = tmp_path_factory.mktemp("data") / "corpus"
    build_corpus(folder)
    return folder
