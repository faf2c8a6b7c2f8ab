"""Where a study is kept: a journal file, SQLite, and a PostgreSQL server that the tests start."""

import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import optuna
import pytest
from optuna.samplers import RandomSampler
from optuna.trial import TrialState

from search.config.search_space import resolve_space
from search.errors import StoreError, UsageError
from search.samplers.factory import create_sampler
from search.storage import postgres, requests
from search.storage.study_store import create_backend, open_store
from search.study.record import load_search
from search.study.study import create_study
from search.study.trial import get_outcome, get_reports
from tests.conftest import ROOT
from tests.search.objectives import VAL_LOSS
from trainables.task import TaskConfig, searchable

CUT = "terminating connection due to administrator command"
KINDS = ["journal", "sqlite", "postgresql"]


class Config(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)


SPACE = resolve_space(Config, {}, {})


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
    return [
        repr((t.number, t.state, t.values, t.params, sorted(t.user_attrs.items()), t.intermediate_values))
        + repr((sorted(t.system_attrs.items()), t.distributions, t.datetime_start, t.datetime_complete))
        for t in trials
    ]


@pytest.mark.parametrize("url", KINDS, indirect=True)
def test_what_the_driver_knows_is_what_others_read(tmp_path, url):
    folder = keep(tmp_path / "one", url)
    study, store = create_study(folder, RandomSampler, [VAL_LOSS], url=url)
    play(study)
    searched = load_search(folder)
    trials, objectives = searched.trials, searched.objectives
    assert objectives == (VAL_LOSS,)
    assert told(trials) == told(study.get_trials())
    assert [get_outcome(t) for t in trials] == ["completed", "pruned", "diverged", "failed", "interrupted"]
    assert trials[0].value == 0.5
    assert trials[2].constraints == {"diverged": 1.0}
    assert math.isnan(get_reports(trials[1])[2]["metrics"]["train/loss"])
    store.close()


@pytest.mark.parametrize("url", KINDS[1:], indirect=True)
def test_a_study_that_is_opened_again_is_as_it_was_left(tmp_path, url):
    folder = keep(tmp_path / "one", url)
    study, store = create_study(folder, RandomSampler, [VAL_LOSS], url=url)
    play(study)
    before = told(study.get_trials())
    store.close()
    again = open_store(folder, url)
    loaded = optuna.load_study(study_name="one", storage=again.storage)
    assert told(loaded.get_trials()) == before
    loaded.tell(4, 0.25)
    assert (loaded.trials[4].state, loaded.trials[4].value) == (TrialState.COMPLETE, 0.25)
    assert loaded.ask().number == 5
    again.close()


@pytest.mark.parametrize("sampler", ["tpe", "gp", "cmaes", "qmc", "nsga2", "random"])
def test_samplers_propose_the_same_wherever_the_study_is_kept(tmp_path, sampler):
    def search(name, url):
        folder = keep(tmp_path / name, url)
        study, store = create_study(folder, partial(create_sampler, sampler, 1), [VAL_LOSS], url=url)
        drawn = []
        for _ in range(12):
            number, values = study.ask(SPACE)
            study.record_config(number, values)
            study.report(number, 1, values["lr"], {"metrics": {}, "checkpoint": None})
            study.end(number, "completed")
            drawn.append(values)
        store.close()
        return drawn

    assert search("file", "") == search("base", f"sqlite:///{tmp_path}/studies.db")


@pytest.mark.parametrize("url", KINDS, indirect=True)
def test_a_second_driver_is_refused_until_the_first_has_ended(tmp_path, url, monkeypatch):
    monkeypatch.setattr(postgres, "OPENING_S", 0.2)
    folder = keep(tmp_path / "one", url)
    first = open_store(folder, url)
    with pytest.raises(UsageError, match=r"^one must not be running, but another process has it open\.$"):
        open_store(folder, url)
    first.close()
    open_store(folder, url).close()


@pytest.mark.parametrize("url", KINDS, indirect=True)
def test_a_driver_that_is_killed_holds_nothing(tmp_path, url):
    folder = keep(tmp_path / "one", url)
    code = (
        "import sys, time; from pathlib import Path; from search.storage.study_store import open_store\n"
        "store = open_store(Path(sys.argv[1]), sys.argv[2]); print('open', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(folder), url]
    driver = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert driver.stdout.readline() == "open\n"
    driver.kill()
    driver.wait(timeout=10)
    open_store(folder, url).close()


@pytest.mark.parametrize("url", KINDS[1:], indirect=True)
def test_searches_that_start_at_once_in_an_empty_database_do_not_touch_each_other(tmp_path, url):
    def search(folder):
        study, store = create_study(folder, RandomSampler, [VAL_LOSS], url=url)
        for _ in range(5):
            play(study)
        store.close()

    folders = [keep(tmp_path / name, url) for name in ("one", "two", "three")]
    with ThreadPoolExecutor() as threads:
        list(threads.map(search, folders, timeout=120))
    for folder in folders:
        assert [trial.number for trial in load_search(folder).trials] == list(range(25))


@pytest.mark.parametrize("url", KINDS[1:], indirect=True)
def test_a_name_that_is_in_the_database_is_refused_for_a_new_search(tmp_path, url):
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
    create_study(keep(tmp_path / "two", url), RandomSampler, [VAL_LOSS], url=url)[1].close()


def test_a_study_that_is_not_in_the_database_cannot_be_read(tmp_path):
    url = f"sqlite:///{tmp_path}/studies.db"
    with pytest.raises(UsageError, match=r"name must be a search that has begun, but one is not in sqlite:///"):
        load_search(keep(tmp_path / "one", url))


def test_a_journal_that_cannot_be_read_is_told_in_one_line(tmp_path):
    folder = tmp_path / "one"
    folder.mkdir()
    create_study(folder, RandomSampler, [VAL_LOSS])[1].close()
    journal = folder / "study.journal"
    text = journal.read_bytes()
    for broken, line in [
        (b"garbage\n" + text, r"name must be a search that can be read, but .*study\.journal is broken: .*"),
        (text.splitlines(keepends=True)[0], r"name must be a search that has begun, but one has not\."),
        (b"", r"name must be a search that has begun, but .*study\.journal is empty\."),
    ]:
        journal.write_bytes(broken)
        with pytest.raises(UsageError, match=rf"^{line}$"):
            load_search(folder)
    journal.write_bytes(text)
    with pytest.raises(
        UsageError, match=r"^the folder of a search must have its name, one, but is .*two\. Rename it\.$"
    ):
        load_search(folder.rename(tmp_path / "two"))


def test_a_database_that_cannot_be_used_is_told_in_one_line(tmp_path):
    (tmp_path / "text.db").write_text("this is a text, and no database at all. " * 50)
    for url, line in [
        ("postgresql://someone@127.0.0.1:1/db", r"--study must be a database that can be used, but .*refused.*"),
        (
            f"sqlite:///{tmp_path}/nowhere/x.db",
            r"--study must be a file that can be written, in a folder that can, but got .*",
        ),
        (
            f"sqlite:///{tmp_path}/text.db",
            r"--study must be a database that can be used, but .*file is not a database\.",
        ),
    ]:
        with pytest.raises(UsageError, match=rf"^{line}$") as error:
            create_backend(tmp_path / "one", url).check()
        assert len(error.value.problems) == 1


def test_a_database_that_one_may_only_read_is_refused(server, database, tmp_path):
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


def test_a_missing_driver_of_the_database_is_named():
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from pathlib import Path; from search.storage.study_store import create_backend\n"
        "create_backend(Path('one'), 'postgresql://somewhere/db').check()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stderr.strip().splitlines()[-1] == (
        "search.errors.UsageError: --study postgresql://somewhere/db must have the package psycopg, "
        "but it is not installed. pip install 'psycopg[binary]'"
    )


def test_a_search_goes_on_when_its_database_comes_back(server, database, tmp_path):
    folder = keep(tmp_path / "one", database)
    study, store = create_study(folder, RandomSampler, [VAL_LOSS], url=database)
    for _ in range(3):
        play(study)
        server.stop()
        server.start()
    play(study)
    assert [trial.number for trial in study.get_trials()] == list(range(20))
    assert told(load_search(folder).trials) == told(study.get_trials())
    with pytest.raises(UsageError, match="must not be running"):
        open_store(folder, database)
    store.close()


def test_a_connection_that_is_cut_at_any_moment_costs_nothing(server, database, tmp_path):
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
    study, store = create_study(keep(tmp_path / "one", database), RandomSampler, [VAL_LOSS], url=database)
    before = server.log().count(CUT)
    cutting = subprocess.Popen([sys.executable, "-c", cutter, f"{server.url}/postgres", name])
    try:
        deadline, rounds = time.monotonic() + 60, 0
        while server.log().count(CUT) < before + 8 and time.monotonic() < deadline:
            play(study)
            rounds += 1
    finally:
        cutting.kill()
        cutting.wait(timeout=10)
    ended = [get_outcome(trial) for trial in study.get_trials()]
    assert ended == ["completed", "pruned", "diverged", "failed", "interrupted"] * rounds
    assert server.log().count(CUT) >= before + 8
    assert told(load_search(tmp_path / "one").trials) == told(study.get_trials())
    store.close()


def test_a_search_whose_database_stays_away_ends_and_asks_no_more(server, database, tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "PATIENCE_S", 1.0)
    study, store = create_study(keep(tmp_path / "one", database), RandomSampler, [VAL_LOSS], url=database)
    number, _ = study.ask(SPACE)
    server.stop()
    try:
        with pytest.raises(
            StoreError, match=r"the study's database was lost, and not found again in 1 s \(.*refused\)$"
        ):
            study.record_config(number, {})
        start = time.monotonic()
        with pytest.raises(StoreError, match="was lost before"):
            study.end(number, "failed")
        assert time.monotonic() - start < 0.5
    finally:
        server.start()
        store.close()


def test_a_study_that_another_driver_has_taken_over_is_not_written_any_more(server, database, tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "PATIENCE_S", 1.0)
    folder = keep(tmp_path / "one", database)
    study, store = create_study(folder, RandomSampler, [VAL_LOSS], url=database)
    number, _ = study.ask(SPACE)
    server.stop()
    server.start()
    other = open_store(folder, database)
    with pytest.raises(StoreError, match="another process has the study open"):
        study.record_config(number, {"lr": 1.0})
    assert "config" not in load_search(folder).trials[0].user_attrs
    other.close()
    store.close()
