import pytest

from search.config import load_config
from search.errors import UsageError
from search.experiment import plan
from search.experiment.resume import create_search, open_search
from search.storage.cached_rdb import CachedRDBStorage
from search.storage.study_store import open_store
from tests.end_to_end.test_driver_crash import LR, TASKS, drive, told


class Killed(BaseException):
    """The driver is gone."""


def begun(folder):
    task = {"task": f"{TASKS / 'toy.py'}:Toy", "name": "one", "storage": folder / "runs", "trials": "5"}
    planned = plan(load_config({**task, **LR, "study": f"sqlite:///{folder}/studies.db"}))
    planned.config.local_path.mkdir(parents=True)
    return planned, create_search(planned)


def ask_until(monkeypatch, moment, answered):
    """Kill the driver at question `moment` to the database: before it, or once it is `answered`."""
    asked = []
    ask = CachedRDBStorage._retry_on_disconnect

    def counted(self, action):
        asked.append(0)
        if len(asked) == moment:
            if answered:
                ask(self, action)
            raise Killed
        return ask(self, action)

    monkeypatch.setattr(CachedRDBStorage, "_retry_on_disconnect", counted)
    return asked


@pytest.mark.parametrize("answered", [False, True])
def test_search_whose_database_dies_resumes_as_if_it_had_not(tmp_path, monkeypatch, answered):
    planned, held = begun(tmp_path / "whole")
    once = []
    with monkeypatch.context() as patch:
        questions = ask_until(patch, -1, answered)
        drive(planned, held, once)
        asked = len(questions)
    assert asked > 60
    for moment in range(1, asked, 23):
        folder = tmp_path / str(moment)
        planned, dying = begun(folder)
        trained: list[tuple[int, int]] = []
        with monkeypatch.context() as patch:
            ask_until(patch, moment, answered)
            with pytest.raises(Killed):
                drive(planned, dying, trained)
        dying.store.close()  # as the kernel does
        drive(*open_search(folder / "runs" / "one", {}), trained)
        again = open_store(folder / "runs" / "one", planned.config.study)
        study = held.study
        assert told(type(study)(again.storage, "one", study._sampler, study.objectives)) == told(study), moment
        again.close()
        assert len(trained) <= len(once) + 1, "at most the epoch that ran is trained again"


def test_search_at_another_url_is_found_and_remembered(tmp_path):
    planned, held = begun(tmp_path)
    with pytest.raises(UsageError, match="one must not be running, but another process has it open"):
        open_search(planned.config.local_path, {})
    held.store.close()
    moved = tmp_path / "moved.db"
    (tmp_path / "studies.db").rename(moved)
    folder = planned.config.local_path
    with pytest.raises(UsageError, match=rf"there is no {folder} that is kept in sqlite:///.*studies\.db\. See --list"):
        open_search(folder, {})
    for given in ({"study": f"sqlite:///{moved}"}, {}):
        planned, held = open_search(folder, given)
        assert planned.config.study == f"sqlite:///{moved}"
        drive(planned, held, [])
    assert len(held.study.get_trials()) == 5
