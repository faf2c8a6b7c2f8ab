"""Twelve tasks with a running search, done by a client that knows only what --help prints."""

import json

import pytest
from click.testing import CliRunner

from searchlight.search.cli import searchlight
from tests.search.output_schemas import check_output

# What the client wants: words of the help of the right command, its arguments, and words of the answer.
TASKS = [
    ("see how it goes", ("the budget, the best trial",), [], '"running": true'),
    ("find trials by a condition", ("as a table, or as JSON",), ["--where", "val/loss<0.6"], '"trial": 0'),
    ("learn why a trial waits", ("Print why trials",), ["--trial", "0"], '"rank": 1'),
    ("try a point of one's own", ("Try a point",), ["lr=0.25", "--full"], "the next trial has lr=0.25"),
    ("let a late starter go on", ("to their full budget",), ["0"], "trial 0 trains to its full budget"),
    ("train the best for longer", ("more epochs",), ["0", "--epochs", "2"], "2 epochs more"),
    ("leave out what diverges", ("no trial in REGION",), ["lr>=0.9"], "no trial is proposed with lr >= 0.9"),
    ("look closer", ("within ranges only",), ["lr=0.01..0.5"], "within lr=0.01..0.5"),
    ("lend half of the GPUs", ("Change the budget of the search",), ["--concurrency", "1"], "concurrency 1"),
    ("stop for the night", ("begin none",), ["--drain"], "no trial begins or continues"),
    ("go on in the morning", ("paused search go on",), [], "begin and continue again"),
    ("take the region back", ("Take back",), ["AVOIDED"], "in force no more"),
    ("end a hopeless trial", ("End TRIALS",), ["0", "--why", "hopeless"], "ends at its next window"),
    ("end early with what is known", ("confirm the best ones",), [], "no trial continues"),
    ("read who did what", ("who changed the search",), [], "hopeless"),
]


def ask(*arguments):
    done = CliRunner().invoke(searchlight, arguments, terminal_width=400, max_content_width=400)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def helps():
    """The help of each command, which the help of the program names."""
    listed = ask("--help").partition("Commands:")[2].splitlines()
    return {name: ask(name, "--help") for name in (line.split()[0] for line in listed if line.strip())}


def test_tasks_are_done_by_who_knows_only_the_help(driver, helps, tmp_path):
    avoided = ""
    for task, words, arguments, expected in TASKS:
        (command,) = (name for name, text in helps.items() if all(word in " ".join(text.split()) for word in words))
        options = [argument for argument in (*arguments, "--json", "--storage") if argument.startswith("--")]
        assert all(option in helps[command] for option in options), task
        given = [avoided if argument == "AVOIDED" else argument for argument in arguments]
        answer = ask(command, driver.name, *given, "--storage", str(tmp_path.parent), "--json")
        assert expected in answer, task
        if "--dry-run" in helps[command]:
            entry = check_output("answered", answer)
            avoided = entry["command"]["id"] if command == "avoid" else avoided
    assert len(json.loads(answer)["commands"]) == 11
