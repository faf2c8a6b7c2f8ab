"""Commands as files, their log, and the state that a log describes."""

import json
from dataclasses import asdict

import pytest

from searchlight.search.steering.command import Answer, Command, LogEntry, parse_command, parse_entry
from searchlight.search.steering.mailbox import FOLDER, read_requests, send, wait_for_answer, write_answer
from searchlight.search.steering.state import build_state

ACCEPTED = Answer(True, "done", undo=True)


def log_of(*commands, refused=()):
    return [
        LogEntry(number, command, Answer(False, "no") if command in refused else ACCEPTED)
        for number, command in enumerate(commands, start=1)
    ]


def test_command_arrives_as_it_was_sent_and_is_answered(tmp_path):
    command = Command("stop", {"trials": [3]}, "ann", "it diverges", revision=2)
    send(tmp_path, command)
    assert read_requests(tmp_path, pytest.fail) == [command]
    entry = LogEntry(1, command, ACCEPTED)
    write_answer(tmp_path, entry)
    assert read_requests(tmp_path, pytest.fail) == []
    found = wait_for_answer(tmp_path, command, 0.0)
    assert (found.revision, found.command, found.answer.effect) == (1, command, "done")
    assert list((tmp_path / FOLDER).iterdir()) == []
    assert wait_for_answer(tmp_path, command, 0.0) is None


def test_commands_are_read_in_the_order_of_their_making(tmp_path):
    made = [Command("pause", {"drain": False}, "a", at=5.0), Command("continue", {}, "a", at=7.0)]
    for command in reversed(made):
        send(tmp_path, command)
    assert read_requests(tmp_path, pytest.fail) == made


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"operation": "explode"}, "operation must be one of stop, keep"),
        ({"args": {"trials": [1], "more": 2}}, "stop must have no more"),
        ({"args": {}}, "stop trials must be a valid list, but got None"),
        ({"args": {"trials": [[1]]}}, "must be a valid integer"),
        ({"args": None}, "args must be a valid"),
        ({"at": "now"}, "at must be a valid number, but got 'now'"),
        ({"revision": "1"}, "revision must be a valid integer"),
        ({"operation": "avoid", "args": {"region": 5}}, "avoid region must be a valid string"),
        ({"operation": "narrow", "args": {"ranges": {"lr": 5}}}, "must be a valid string, but got 5"),
        ({"operation": "try", "args": {}}, "try point must be a valid dictionary"),
        ({"id": "../../etc"}, "id must be letters"),
        ({"surprise": 1}, "must have the fields"),
    ],
)
def test_file_without_a_command_is_told_and_deleted(tmp_path, change, reason):
    content = {**asdict(Command("stop", {"trials": [1]})), **change}
    (tmp_path / FOLDER).mkdir()
    for name, text in {"a": json.dumps(content), "b": "{", "c": "[1]"}.items():
        (tmp_path / FOLDER / f"{name}.request.json").write_text(text)
    told = []
    assert read_requests(tmp_path, told.append) == []
    assert len(told) == 3
    assert reason in told[0] + told[1] + told[2]
    assert list((tmp_path / FOLDER).iterdir()) == []
    with pytest.raises(ValueError, match=reason):
        parse_command(content)


def test_entry_survives_json():
    entry = LogEntry(4, Command("try", {"point": {"lr": 0.1}, "full": True}), Answer(True, "x", ["careful"]))
    assert parse_entry(json.loads(json.dumps(entry.as_json()))) == entry


def test_state_has_the_last_word_on_each_subject():
    stop = Command("stop", {"trials": [1, 2]}, "ann", "too slow")
    few, many = Command("budget", {"trials": 5}), Command("budget", {"trials": 9, "concurrency": 2})
    refused = Command("budget", {"trials": 100})
    state = build_state(log_of(stop, few, many, refused, refused=[refused]))
    assert state.get_reasons("stop") == {1: "by ann: too slow", 2: "by ann: too slow"}
    assert (state.get_limit("trials"), state.get_limit("concurrency"), state.get_limit("gpu_hours")) == (9, 2, None)
    assert state.pause is None


def test_undo_takes_back_a_command_or_another_undo():
    pause = Command("pause", {"drain": True})
    undo = Command("undo", {"command": pause.id})
    again = Command("undo", {"command": undo.id})
    assert build_state(log_of(pause)).pause == pause
    assert build_state(log_of(pause, undo)).pause is None
    assert build_state(log_of(pause, undo, again)).pause == pause


def test_continue_ends_a_pause():
    assert build_state(log_of(Command("pause", {}), Command("continue", {}))).pause is None
