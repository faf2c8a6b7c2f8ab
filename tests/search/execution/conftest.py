import pytest

from tests.search.execution.searcher_harness import Gangs


@pytest.fixture
def gangs(tmp_path):
    """Makes the gangs of a search."""
    made = []

    def make(schedule, trials=6, searched=None, **fixed):
        made.append(Gangs(tmp_path, schedule, trials, fixed, searched or {}))
        return made[-1]

    yield make
    for each in made:
        each.lock.close()
