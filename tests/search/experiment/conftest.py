import pytest

from tests.search.experiment.steered_searcher import Driver


@pytest.fixture
def driver(make_searcher, tmp_path):
    return Driver(make_searcher(trials=6), tmp_path)
