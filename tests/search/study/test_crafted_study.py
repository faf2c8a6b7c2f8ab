"""A study that another writer changed: nothing in it runs as code, and the search continues."""

import pickle
from functools import partial
from pathlib import Path

import pytest
from optuna.trial import create_trial

from searchlight.search.samplers.factory import sampler_factory
from searchlight.search.storage.study_store import open_store
from searchlight.search.study.record import load_search
from searchlight.search.study.study import create_study
from searchlight.trainables.filesystem.paths import parse_path
from tests.search.objectives import VAL_LOSS
from tests.search.study.played_studies import SAMPLERS, SPACE, complete, play_trials

# CMA-ES of Optuna keeps its pickles in attributes of this form. The others keep text and numbers.
NAMES = ("cma:optimizer", "sepcma:optimizer", "cmawm:optimizer", "tpe:relative_params", "gp:relative_params")


class Command:
    """An object that creates the file `path` when its pickle is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture(params=["journal", "bucket", "sqlite", "postgresql"])
def kept(request, tmp_path):
    """The folder of a search, and the URL of its study."""
    if request.param == "bucket":
        return parse_path(request.getfixturevalue("s3")) / "searches" / "one", ""
    (tmp_path / "one").mkdir()
    if request.param == "postgresql":
        return tmp_path / "one", request.getfixturevalue("server").database(f"crafted_{abs(hash(tmp_path))}")
    return tmp_path / "one", f"sqlite:///{tmp_path}/studies.db" if request.param == "sqlite" else ""


@pytest.mark.parametrize("sampler", [*SAMPLERS, "optuna.samplers:CmaEsSampler"])
def test_nothing_that_another_writer_put_into_a_study_runs(kept, tmp_path, sampler):
    (place, url), created = kept, tmp_path / "created"
    (tmp_path / "one").mkdir(exist_ok=True)
    (tmp_path / "one" / "search.yaml").write_text(f"study: '{url}'\n")
    resume = partial(create_study, place, sampler_factory(sampler, 1), [VAL_LOSS], url=url)

    def tell(number, values):
        complete(study, number, values["lr"])

    study, store = resume()
    play_trials(study, SPACE, 8, tell)
    store.close()

    content = pickle.dumps(Command(created)).hex()
    store = open_store(place, url)
    (of_study,) = store.storage.get_all_studies()
    like = load_search(place).trials[0]
    for generation in (content, 0, [], -1, 1e300, True, None):
        attributes = {f"{name}:0": content for name in NAMES} | {"cma:generation": generation}
        crafted = create_trial(value=0.5, params=like.params, distributions=like.distributions, system_attrs=attributes)
        store.storage.create_new_trial(of_study._study_id, crafted)
    store.commit()
    store.close()

    study, store = resume()
    play_trials(study, SPACE, 3, tell)
    store.close()
    assert not created.exists()
    assert len(load_search(place).trials) == 8 + 7 + 3
    pickle.loads(bytes.fromhex(content))
    assert created.exists()
