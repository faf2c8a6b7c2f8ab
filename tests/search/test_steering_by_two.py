"""Two people who give each command at the same time, having seen the same log."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from searchlight.search.reporting.running_search import RunningSearch
from searchlight.search.steering.command import Command
from searchlight.search.steering.operations import OPERATIONS

# What one and the other ask, in this order, and how many of them are accepted.
ASKED = [
    ("try", {"point": {"lr": 0.25}}, {"point": {"lr": 0.35}}, 2),
    ("try", {"point": {"lr": 0.45}}, {"point": {"lr": 0.45}}, 1),
    ("keep", {"trials": [0]}, {"trials": [0]}, 1),
    ("extend", {"trials": [0], "epochs": 1}, {"trials": [0], "epochs": 2}, 1),
    ("believe", {"point": {"lr": 0.3}}, {"point": {"lr": 0.4}}, 0),  # the sampler draws at random
    ("avoid", {"region": "lr>=0.9"}, {"region": "lr<=0.01"}, 2),
    ("narrow", {"ranges": {"lr": "0.05..0.8"}}, {"ranges": {"lr": "0.1..0.7"}}, 1),
    ("undo", {"command": "narrow"}, {"command": "narrow"}, 1),
    ("budget", {"trials": 8}, {"trials": 9}, 1),
    ("budget", {"trials": 7}, {"concurrency": 2}, 2),
    ("pause", {"drain": True}, {"drain": True}, 1),
    ("continue", {}, {}, 1),
    ("stop", {"trials": [0]}, {"trials": [0]}, 1),
    ("finish", {}, {}, 1),
]


def test_commands_of_two_people_contradict_each_other_never_twice(driver, tmp_path):
    assert {operation for operation, *_ in ASKED} == {*OPERATIONS}
    searches = [RunningSearch(tmp_path), RunningSearch(tmp_path)]
    given, seen = [], {}
    with ThreadPoolExecutor(2) as people:
        for operation, one, other, accepted in ASKED:
            revision = len(searches[0].log())
            args = [
                {**each, "command": seen[each["command"]]} if operation == "undo" else each for each in (one, other)
            ]
            made = [Command(operation, each, name, revision=revision) for each, name in zip(args, "ab", strict=True)]
            entries = [*people.map(lambda search, command: search.send(command, 60.0), searches, made)]
            assert [entry.command.id for entry in entries] == [command.id for command in made], "each has its answer"
            agreed = [entry.command for entry in entries if entry.answer.accepted]
            assert len(agreed) == accepted, (operation, [entry.answer.effect for entry in entries])
            given += [command.id for command in made]
            seen[operation] = agreed[0].id if agreed else ""
    log = searches[0].log()
    assert sorted(entry.command.id for entry in log) == sorted(given), "each is there once"
    assert [entry.revision for entry in log] == [*range(1, len(given) + 1)]


@pytest.mark.parametrize("torn", [b"{", b'{"op_code":8,"worker_id":"a'])
def test_log_that_is_damaged_at_its_end_keeps_the_commands_before(driver, tmp_path, torn):
    search = RunningSearch(tmp_path)
    search.avoid("lr>=0.9")
    with driver.lock, open(tmp_path / "study.journal", "ab") as journal:
        journal.write(torn)  # as a driver leaves it that is killed while it writes
        journal.flush()
        assert [entry.command.operation for entry in search.log()] == ["avoid"]
        assert search.status()["revision"] == 1
