import sys

import pytest
from click.testing import CliRunner

from searchlight.search.command.options import CommandOptions, list_words, name_program
from searchlight.search.config import SearchConfig, load_config
from searchlight.search.config.loading import to_yaml
from searchlight.search.run import main
from tests.search.refusals import problems_of

TRAIN = ["python", "train.py", "--lr", "{lr}"]


def test_words_after_two_dashes_are_the_command():
    words = ["--trials", "3", "lr=1", "--", *TRAIN, "--", "--trials", "9"]
    given = main.make_context("run.py", words).params
    assert given["command"] == (*TRAIN, "--", "--trials", "9")
    assert (given["trials"], given["task"]) == ("3", "lr=1")


@pytest.mark.parametrize("command", [TRAIN, tuple(TRAIN), "python train.py --lr {lr}", ["python train.py --lr {lr}"]])
def test_command_is_words_or_one_text(command):
    assert CommandOptions(command=command).command == tuple(TRAIN)


def test_search_of_a_command_is_named_after_its_program():
    config = load_config({"command": ["python", "-u", "src/my-script.py"]})
    assert (config.task, config.experiment) == ("my-script.py", "my-script.py")
    assert config.name.startswith("my-script-")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py config/a.py", "train.py"),
        ("torchrun --standalone --nproc_per_node={nproc} multi.py 9 1", "multi.py"),
        ("accelerate launch nlp_example.py --mixed_precision {precision}", "nlp_example.py"),
        ("python -m package.train --lr 1", "package.train"),
        ("./build/train --lr 1", "train"),
        ("bash -c 'cd x && python train.py'", "bash"),
    ],
)
def test_program_is_its_script_or_module(command, name):
    assert name_program(CommandOptions(command=command).command) == name


def test_yaml_file_of_a_command_starts_the_same_search(tmp_path):
    options = {"command": TRAIN, "metric": ["loss=loss ([0-9.]+)"], "stop_grace": "1m", "cold": True}
    config = load_config(options)
    (tmp_path / "search.yaml").write_text(to_yaml(config))
    read = load_config({"name": config.name}, tmp_path / "search.yaml")
    assert read == config
    assert (read.stop_grace, read.cold, read.recycle_after) == (60.0, True, None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"task": "arc", "metric": ["loss=x"]},
         "--metric must come with a command: searchlight run [options] -- python train.py"),
        ({"task": "arc", "every": "3"},
         "--every must come with a command: searchlight run [options] -- python train.py"),
        ({"task": "main.py", "command": TRAIN},
         "task must be left out with a command, but got 'main.py'."),
        ({"command": "python 'train.py"}, "--command must be words as in a shell, but got \"python 'train.py\": "
                                          "No closing quotation."),
        ({"command": TRAIN, "metric": ["loss=loss ([0-9"]}, "--metric must have a regular expression, but got "
                                                            "'loss=loss ([0-9': unterminated character set at position "
                                                            "6."),
        ({"command": TRAIN, "metric": ["loss=json", "acc=x"]}, "--metric must have parentheses around the value, like "
                                                               "acc=acc: ([0-9.]+), but got 'acc=x'."),
        ({"command": TRAIN, "metric": ["loss"]}, "--metric must be like NAME=REGEX or NAME=json, but got 'loss'."),
        ({"command": TRAIN, "resume_with": "'"}, "--resume-with must be words as in a shell, but got \"'\": "
                                                 "No closing quotation."),
    ],
)  # fmt: skip
def test_wrong_option_of_a_command_is_refused(given, message):
    assert problems_of(load_config, given) == [message]


def test_command_in_python_needs_no_task():
    config = SearchConfig(command=[sys.executable, "train.py"], objective="loss:min")
    assert config.task == "train.py"


def test_task_and_command_together_are_refused():
    done = CliRunner().invoke(main, ["arc", "--", *TRAIN])
    assert done.exit_code == 2
    assert done.stderr == "task must be left out with a command, but got 'arc'.\n"


def test_words_give_the_same_options_again():
    words = ["--metric", "loss=loss (.*)", "--metric", "acc=json", "--stop-grace", "60.0", "--cold"]
    given = {"command": TRAIN, "metric": ["loss=loss (.*)", "acc=json"], "stop_grace": "1m", "cold": True}
    assert list_words(CommandOptions(**given).model_dump(mode="json")) == words
    assert list_words(CommandOptions(command=TRAIN).model_dump(mode="json")) == []
