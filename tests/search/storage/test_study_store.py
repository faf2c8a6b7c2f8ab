"""Where a study is kept: a journal file, SQLite, and a PostgreSQL server that the tests start."""

import math
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import optuna
import pytest
from optuna.samplers import RandomSampler
from optuna.trial import TrialState

from searchlight.search.errors import StoreError, UsageError
from searchlight.search.experiment.opening import open_search
from searchlight.search.folder import retry
from searchlight.search.samplers.factory import create_sampler
from searchlight.search.storage import postgres
from searchlight.search.storage.study_store import create_backend, open_store
from searchlight.search.study.record import load_search
from searchlight.search.study.study import create_study
from searchlight.search.study.trial import get_outcome, get_reports
from tests.conftest import ROOT
from tests.search.objectives import VAL_LOSS
from tests.search.study.played_studies import SAMPLERS, SPACE, complete, play_trials

CUT = "terminating connection due to administrator command"
KINDS = ["journal", "sqlite", "postgresql"]


@pytest.fixture
def database(server, request):
    """The URL of an empty database on the server."""
    return server.database(f"d{abs(hash(request.node.name))}_{time.time_ns()}")


@pytest.fixture
def url(request, tmp_path):
    """Of the kind that a test is given."""
    if request.param == "journal":
        return ""
    return f"sqlite:///{tmp_path}/studies.db" if request.param == "sqlite" else request.getfixturevalue("database")


def keep(folder, url):
    """The search in `folder` as one that is kept at `url`."""
    folder.mkdir(exist_ok=True)
    (folder / "search.yaml").write_text(f"study: '{url}'\n")
    return folder


def play(study):
    """Five trials: one of each end, and one that goes on."""
    for outcome in ("completed", "pruned", "diverged", "failed", "running"):
        number, values = study.ask(SPACE)
        study.record_config(number, {"lr": values["lr"], "inner": {"kind": "a"}})
        for epoch in (1, 2):
            report = {"metrics": {"val/loss": 1.0 / epoch, "train/loss": math.nan}, "checkpoint": f"{epoch}.pt"}
            study.report(number, epoch, 1.0 / epoch, report)
        if outcome != "running":
            study.end(number, outcome, "because")


def told(trials):
    """All that a trial is, without what is of the storage alone. As text: NaN is not equal to itself."""
    names = ("number", "state", "values", "params", "intermediate_values", "distributions")
    names += ("user_attrs", "system_attrs", "datetime_start", "datetime_complete")
    given = [[getattr(trial, name) for name in names] for trial in trials]
    return repr([[sorted(each.items()) if isinstance(each, dict) else each for each in row] for row in given])


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "one"


@pytest.mark.parametrize("url", KINDS, indirect=True)
def test_others_read_what_the_driver_knows(folder, url):
    study, store = create_study(keep(folder, url), RandomSampler, [VAL_LOSS], url=url)
    play(study)
    searched = load_search(folder)
    trials = searched.trials
    assert searched.objectives == (VAL_LOSS,)
    assert told(trials) == told(study.get_trials())
    assert [get_outcome(t) for t in trials] == ["completed", "pruned", "diverged", "failed", "interrupted"]
    assert trials[0].value == 0.5
    assert trials[2].constraints == {"diverged": 1.0}
    assert math.isnan(get_reports(trials[1])[2]["metrics"]["train/loss"])
    store.close()
    again = open_store(folder, url)
    if url:  # Optuna itself waits for a lock on a journal that is open
        loaded = optuna.load_study(study_name="one", storage=again.storage)
        assert told(loaded.get_trials()) == told(trials)
        loaded.tell(4, 0.25)
        assert (loaded.trials[4].state, loaded.trials[4].value) == (TrialState.COMPLETE, 0.25)
        assert loaded.ask().number == 5
    again.close()


def test_link_to_a_database_has_its_lock(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "data" / "studies.db")
    held = open_store(tmp_path / "one", f"sqlite:///{tmp_path}/data/studies.db")
    with pytest.raises(UsageError, match="one"):
        open_store(tmp_path / "one", f"sqlite:///{tmp_path}/link.db")
    held.close()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers_propose_the_same_wherever_the_study_is(tmp_path, sampler):
    def search(name, url):
        study, store = create_study(
            keep(tmp_path / name, url), partial(create_sampler, sampler, 1), [VAL_LOSS], url=url
        )
        drawn = play_trials(study, SPACE, 12, lambda number, values: complete(study, number, values["lr"]))
        store.close()
        return drawn

    assert search("file", "") == search("base", f"sqlite:///{tmp_path}/studies.db")


@pytest.mark.parametrize("url", KINDS, indirect=True)
def test_second_driver_is_refused_until_the_first_has_ended(folder, url, monkeypatch):
    monkeypatch.setattr(postgres, "OPENING_S", 0.2)
    first = open_store(keep(folder, url), url)
    with pytest.raises(UsageError, match=r"^one must not be running, but another process has it open\.$"):
        open_store(folder, url)
    first.close()
    code = (
        "import sys; from pathlib import Path; from searchlight.search.storage.study_store import open_store\n"
        "store = open_store(Path(sys.argv[1]), sys.argv[2]); print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(folder), url]
    driver = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert driver.stdout.readline() == "open\n"
    driver.kill()
    driver.wait(timeout=60)
    monkeypatch.undo()
    open_store(folder, url).close()


@pytest.mark.parametrize("url", KINDS[1:], indirect=True)
def test_simultaneous_searches_in_a_database_are_kept_apart(tmp_path, url):
    def search(name):
        study, store = create_study(keep(tmp_path / name, url), RandomSampler, [VAL_LOSS], url=url)
        play(study)
        play(study)
        store.close()
        return [trial.number for trial in load_search(tmp_path / name).trials]

    with ThreadPoolExecutor() as threads:
        assert list(threads.map(search, ("one", "two", "three"))) == [list(range(10))] * 3


@pytest.mark.parametrize("url", KINDS[1:], indirect=True)
def test_name_in_the_database_is_refused_for_a_new_search(tmp_path, url):
    create_backend(tmp_path / "one", url).check()
    assert not (tmp_path / "studies.db").exists(), "a check writes nothing"
    create_study(keep(tmp_path / "one", url), RandomSampler, [VAL_LOSS], url=url, new=True)[1].close()
    create_backend(tmp_path / "two", url).check()
    line = f"--name must be new, but one exists in --study {url}. Choose another."
    with pytest.raises(UsageError) as told_before:
        create_backend(tmp_path / "one", url).check()
    with pytest.raises(UsageError) as told_late:
        create_study(tmp_path / "one", RandomSampler, [VAL_LOSS], url=url, new=True)
    assert str(told_before.value) == str(told_late.value) == line


def test_unreadable_study_is_refused_in_one_line(folder, tmp_path):
    url = f"sqlite:///{tmp_path}/studies.db"
    with pytest.raises(UsageError, match=r"name must be a search that has begun, but one is not in sqlite:///"):
        load_search(keep(folder, url))
    create_study(keep(folder, ""), RandomSampler, [VAL_LOSS])[1].close()
    journal = folder / "study.journal"
    text = journal.read_bytes()
    for broken, line in [
        (
            b"garbage\n" + text,
            r".*study\.journal must be the journal of a study, but line 1 is no record\. Restore it\.",
        ),
        (text.splitlines(keepends=True)[0], r"name must be a search that has begun, but one has not\."),
        (b"", r"name must be a search that has begun, but .*study\.journal is empty\."),
    ]:
        journal.write_bytes(broken)
        with pytest.raises(UsageError, match=rf"^{line}$"):
            load_search(folder)
    journal.write_bytes(text)
    line = r"^the folder of a search must have its name, one, but is .*two\. Rename it\.$"
    with pytest.raises(UsageError, match=line):
        load_search(folder.rename(folder.with_name("two")))


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("postgresql://someone@127.0.0.1:1/db", "--study must be a database that can be used, but .*refused.*"),
        ("sqlite:///{}/nowhere/x.db", "--study must be a file that can be written, in a folder that can, but got .*"),
        ("sqlite:///{}/text.db", r"--study must be a database that can be used, but .*file is not a database\."),
        (
            "postgresql://somewhere/db",
            "--study postgresql://somewhere/db must have the package psycopg, but it is not installed. "
            r"pip install 'psycopg\[binary\]'",
        ),
    ],
)
def test_unusable_database_is_refused_in_one_line(tmp_path, folder, monkeypatch, url, line):
    if "somewhere" in url:
        monkeypatch.setitem(sys.modules, "psycopg", None)
    (tmp_path / "text.db").write_text("this is a text, and no database at all. " * 50)
    with pytest.raises(UsageError, match=rf"^{line}$") as error:
        create_backend(folder, url.format(tmp_path)).check()
    assert len(error.value.problems) == 1


def test_damaged_database_is_refused_in_one_line(tmp_path, folder):
    url = f"sqlite:///{tmp_path}/studies.db"
    study, store = create_study(keep(folder, url), RandomSampler, [VAL_LOSS], url=url)
    play(study)
    store.close()
    with sqlite3.connect(tmp_path / "studies.db") as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'studies'").fetchall()
    content = bytearray((tmp_path / "studies.db").read_bytes())
    ((page,),) = pages
    content[(page - 1) * 4096 : page * 4096] = bytes(4096)  # the tables exist, and one cannot be read
    (tmp_path / "studies.db").write_bytes(content)
    line = r"^--study must be a database that can be used, but .*studies\.db: database disk image is malformed\.$"
    for _ in range(2):  # the first refusal frees the lock
        for action in (load_search, partial(open_search, given={})):
            with pytest.raises(UsageError, match=line):
                action(folder)
    assert (tmp_path / "studies.db").read_bytes() == content


def test_database_without_the_right_to_write_is_refused(server, database, tmp_path):
    name = database.rpartition("/")[2]
    url = database.replace("searcher@", "reader@")
    server.execute(name, "REVOKE CREATE ON SCHEMA public FROM PUBLIC", "CREATE ROLE reader LOGIN")
    with pytest.raises(UsageError, match=rf"that reader may write to, but {name} is not\. GRANT CREATE ON SCHEMA"):
        create_backend(tmp_path / "one", url).check()
    create_study(keep(tmp_path / "one", database), RandomSampler, [VAL_LOSS], url=database)[1].close()
    server.execute(name, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    with pytest.raises(UsageError, match=rf"that reader may write to, but {name} is not\. GRANT INSERT ON ALL TABLES"):
        create_backend(tmp_path / "two", url).check()
    assert load_search(keep(tmp_path / "one", url)).trials == []


@pytest.mark.slow
def test_connection_cut_at_any_moment_costs_nothing(server, database, folder):
    name = database.rpartition("/")[2]
    cutter = (
        "import random, sys, time, psycopg\n"
        "draw = random.Random(0)\n"
        "with psycopg.connect(sys.argv[1], autocommit=True) as own:\n"
        "    while True:\n"
        "        own.execute('SELECT pg_terminate_backend(pid) FROM pg_stat_activity '\n"
        "            'WHERE datname = %s AND pid <> pg_backend_pid()', (sys.argv[2],))\n"
        "        time.sleep(draw.uniform(0.05, 0.25))"
    )
    study, store = create_study(keep(folder, database), RandomSampler, [VAL_LOSS], url=database)
    before = server.log().count(CUT)
    cutting = subprocess.Popen([sys.executable, "-c", cutter, f"{server.url}/postgres", name])
    rounds = 0
    try:
        while server.log().count(CUT) < before + 8:
            assert cutting.poll() is None
            play(study)
            rounds += 1
    finally:
        cutting.kill()
        cutting.wait(timeout=60)
    ended = [get_outcome(trial) for trial in study.get_trials()]
    assert ended == ["completed", "pruned", "diverged", "failed", "interrupted"] * rounds
    assert told(load_search(folder).trials) == told(study.get_trials())
    store.close()


@pytest.mark.parametrize("url", KINDS, indirect=True)
def test_driver_that_has_the_study_open_is_known(folder, url, tmp_path):
    _, store = create_study(keep(folder, url), RandomSampler, [VAL_LOSS], url=url)
    _, other = create_study(keep(tmp_path / "other", url), RandomSampler, [VAL_LOSS], url=url)
    assert load_search(folder).is_open is True
    store.close()
    assert not load_search(folder).is_open, "another search does not count"
    other.close()


def test_closed_study_is_free_before_the_server_notices_the_closed_connection(database, folder, monkeypatch):
    _, store = create_study(keep(folder, database), RandomSampler, [VAL_LOSS], url=database)
    left_open = []
    with monkeypatch.context() as patch:
        patch.setattr("psycopg.Connection.close", lambda connection: left_open.append(connection))
        store.close()
    assert len(left_open) == 1
    assert not load_search(folder).is_open
    left_open[0].close()


def test_study_outlives_its_database_unless_it_is_taken_over(server, database, folder, monkeypatch):
    study, store = create_study(keep(folder, database), RandomSampler, [VAL_LOSS], url=database)
    play(study)
    server.stop()
    server.start()
    play(study)
    assert [trial.number for trial in study.get_trials()] == list(range(10))
    assert told(load_search(folder).trials) == told(study.get_trials())
    with pytest.raises(UsageError, match="must not be running"):
        open_store(folder, database)
    number, _ = study.ask(SPACE)
    server.stop()
    server.start()
    other = open_store(folder, database)
    monkeypatch.setattr(retry, "PATIENCE_S", 1.0)
    with pytest.raises(StoreError, match="another process has the study open"):
        study.record_config(number, {"lr": 1.0})
    assert "config" not in load_search(folder).trials[number].user_attrs
    other.close()
    store.close()


def test_database_that_stays_away_ends_the_search(server, database, folder, monkeypatch):
    monkeypatch.setattr(retry, "PATIENCE_S", 1.0)
    study, store = create_study(keep(folder, database), RandomSampler, [VAL_LOSS], url=database)
    number, _ = study.ask(SPACE)
    server.stop()
    line = r"the study's database was lost, and not found again in 1 s \(.*refused\)$"
    try:
        with pytest.raises(StoreError, match=line):
            study.record_config(number, {})
        with pytest.raises(StoreError, match="was lost before"):
            study.end(number, "failed")
    finally:
        server.start()
        store.close()
