"""A search in a thread of a script, which looks at it and changes it meanwhile."""

import json

import pytest
from mlflow.tracking import MlflowClient

from searchlight.search.study.record import load_search

pytestmark = pytest.mark.slow

SCRIPT = """
import json
import searchlight
from searchlight.search.errors import UsageError

def start_wrong(**options):
    try:
        searchlight.start(searchlight.SearchConfig(**options))
    except UsageError as error:
        return str(error)

refused = start_wrong(task="missing.py:Toy")
config = searchlight.SearchConfig(
    task="toy.py:Toy", name="behind", trials=200, concurrency=1, scheduler="asha", confirm=0, no_preflight=True,
    set={"pause_s": 0.3, "precision": "fp32"},
)
search = searchlight.start(config)
same = start_wrong(task="toy.py:Toy", name="behind")
second = start_wrong(task="toy.py:Toy", name="second")
tried = search.try_({"lr": 0.05}, full=True)
finished = search.finish(why="enough is known")
result = search.wait()
print(json.dumps({
    "refused": refused,
    "same": same,
    "second": second,
    "effect": tried.answer.effect,
    "stopped": result.stopped,
    "running": search.status()["running"],
    "commands": [entry.command.operation for entry in search.log()],
    "best": search.best(),
    "trials": [*map(int, search.trials().trial)],
}))
"""


def test_script_starts_a_search_and_changes_it(make_cli):
    cli = make_cli()
    (cli.folder / "script.py").write_text(SCRIPT)
    done = cli.run(script=cli.folder / "script.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "missing.py" in found["refused"]
    assert "--name must be new, but behind exists" in found["same"]
    assert "one search at a time" in found["second"]
    assert not (cli.folder / "runs" / "second").exists()
    assert found["effect"].startswith("the next trial has lr=0.05")
    assert "enough is known" in found["stopped"]
    assert found["commands"] == ["try", "finish"]
    assert not found["running"]
    assert found["trials"] == [*range(len(found["trials"]))]


FAILING = """
import time

import searchlight

search = searchlight.start(searchlight.SearchConfig(
    task="toy.py:Toy", name="behind", trials=500, concurrency=1, confirm=0, no_preflight=True,
    set={"pause_s": 0.1, "precision": "fp32"},
))
while not search.best():
    time.sleep(0.2)
raise SystemError("a mistake of the script")
"""


def test_search_of_a_script_that_fails_is_interrupted_and_can_be_resumed(make_cli):
    cli = make_cli()
    (cli.folder / "script.py").write_text(FAILING)
    done = cli.run(script=cli.folder / "script.py")
    assert done.returncode == 1
    assert "SystemError: a mistake of the script" in done.stderr
    assert "stopping: trials end at their next window; its script has failed" in done.stderr
    assert "nothing of search behind is lost. Resume it: " in done.stderr
    record = load_search(cli.folder / "runs" / "behind")
    assert record.drivers[-1][1] is not None, "it has ended in good order"
    begun = len(record.trials)
    assert begun < 500
    resumed = cli.run("--resume", "behind", "--trials", str(begun + 1), "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert sum(json.loads(resumed.stdout)["outcomes"].values()) == begun + 1


LEAVING = """
import searchlight

print(searchlight.start(searchlight.SearchConfig(
    task="toy.py:Toy", name="behind", trials=2, concurrency=1, scheduler="none", confirm=0, no_preflight=True,
    set={"pause_s": 0.1, "precision": "fp32"},
)))
"""


def test_script_that_ends_before_its_search_waits_for_it(make_cli):
    cli = make_cli()
    (cli.folder / "script.py").write_text(LEAVING)
    done = cli.run(script=cli.folder / "script.py")
    assert done.returncode == 0, done.stderr
    told = done.stdout + done.stderr  # what a script prints while Ray runs is printed as what Ray prints
    assert "BackgroundSearch('" in told
    assert "runs/behind')" in told
    assert "2 completed in " in done.stdout
    for line in ("cannot schedule", "SIGTERM handler", "Traceback"):
        assert line not in done.stderr
    assert load_search(cli.folder / "runs" / "behind").drivers[-1][1] is not None
    runs = MlflowClient(f"sqlite:///{cli.folder}/runs/mlflow.db").search_runs(["1"])
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert len(runs) >= 3, "the search and its trials"
