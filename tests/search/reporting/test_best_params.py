import ast
import shlex
from dataclasses import asdict, replace
from itertools import pairwise

import pytest
import yaml
from click.testing import CliRunner

from searchlight.search.analysis.result import SearchResult
from searchlight.search.cli import searchlight
from searchlight.search.errors import UsageError
from searchlight.search.reporting.best_params import FORMATS, format_command_args, write_best_params
from searchlight.search.reporting.console.summary import retrain_command
from searchlight.search.space.function_config import parse_fixed_values
from searchlight.search.steering.command import Answer, Command, LogEntry
from searchlight.trainables.command.call import CALL_FUNCTION
from searchlight.trainables.command.settings import Flag
from tests.search.stored_studies import Search

VALUES = {"lr": 1e-05, "name": "a b", "layers": [1, 2], "fp16": False, "clip": None, "inner.depth": 3}


def best(folder, *arguments):
    words = ["best", "one", "--storage", str(folder), *arguments]
    return CliRunner().invoke(searchlight, words, catch_exceptions=False)


@pytest.fixture
def search(tmp_path):
    """A search with two completed trials, of which the second is the best, and a parameter that --set gives."""
    search = Search(tmp_path, set={"inner.depth": "2"})
    search.run(0.25)
    search.run(0.5)
    yield search
    search.store.close()


def test_formats_can_be_read_back():
    assert yaml.safe_load(FORMATS["yaml"](VALUES)) == VALUES
    assert ast.literal_eval(FORMATS["python"](VALUES)) == VALUES
    words = shlex.split(FORMATS["args"](VALUES))
    expected = {f"--{name}": str(value) for name, value in VALUES.items()} | {"--clip": "null"}
    assert dict(zip(words[::2], words[1::2], strict=True)) == expected


def test_args_have_the_style_of_the_searched_command():
    flags = {
        "lr": Flag(("--learning-rate={value}",)),
        "fp16": Flag(("--fp16",), ("--no-fp16",)),
        "cache": Flag(("--cache",)),
        "layers": Flag(("layers={value}",), is_hydra=True),
        "absent": Flag(("--absent",)),
        "betas": Flag(("--betas", "{value}"), is_list=True),
        "a": Flag(("a={value}",), shared="--options"),
        "b": Flag(("b={value}",), shared="--options"),
    }
    command = ["python", "train.py", "--optim.name={name}", "--depth", "{model-depth}", "--out={trial_dir}", "{data}"]
    about = {"config": {"command": command}, "flags": {name: asdict(flag) for name, flag in flags.items()}}
    values = {"cache": False, "name": "a b", "layers": ["a,b", 2], "fp16": False, "lr": 1e-05, "betas": "[0.9, 0.99]"}
    values |= {"model_depth": 0.123456789, "data": None, "epochs": 9, "a": 1, "b": 2}  # as the program got them
    assert shlex.split(format_command_args(values, about)) == [
        "--optim.name=a b", "--depth", "0.123456789", "null",
        "--learning-rate=1e-05", "--no-fp16", "layers=['a,b',2]", "--betas", "0.9", "0.99",
        "--options", "a=1", "b=2",
    ]  # fmt: skip


def test_args_of_a_function_are_refused():
    command = ["python", "-m", CALL_FUNCTION, "train.py", "evaluate"]
    with pytest.raises(UsageError) as error:
        format_command_args({"lr": 0.1}, {"config": {"command": command}})
    rule = "--format must be yaml or python, because train.py:evaluate has no command line."
    assert str(error.value) == rule


def test_args_are_refused_if_the_command_does_not_take_all(search, tmp_path):
    about = {**search.study.metadata["config"], "command": ["python", "train.py", "--lr={lr}"]}
    search.study.save_metadata({**search.study.metadata, "config": about, "flags": {}})
    search.store.close()
    refused = best(tmp_path, "--format", "args")
    rule = "--format must be yaml or python, because the command takes no argument for inner.depth.\n"
    assert (refused.exit_code, refused.stderr) == (2, rule)


def test_best_config_is_printed_with_what_set_gives(search, tmp_path):
    lr = search.study.get_trial(1).params["lr"]
    assert best(tmp_path, "--format", "args").stdout == f"--lr {lr} --inner.depth 2\n"
    assert yaml.safe_load(best(tmp_path).stdout) == {"lr": lr, "inner.depth": 2}
    assert ast.literal_eval(best(tmp_path, "--format", "python").stdout) == {"lr": lr, "inner.depth": 2}


def test_misspelt_name_is_refused_with_the_nearest_search(search, tmp_path):
    for name, remedy in (("onee", " Did you mean one?"), ("zzzzz", "")):
        refused = CliRunner().invoke(searchlight, ["best", name, "--storage", str(tmp_path)])
        assert refused.exit_code == 2
        assert refused.stderr.endswith(f"there is no {tmp_path / name / 'study.journal'}.{remedy}\n")


def test_confirmed_config_is_the_best(search, tmp_path):
    for seed in (1, 2, 3):
        search.confirm(0, seed, 0.9 + seed / 1000)
        search.confirm(1, seed, 0.1 + seed / 1000)
    result = SearchResult.from_record(search.study.get_record())
    assert result.best.trial_id == 0
    assert write_best_params(result, tmp_path)
    text = (tmp_path / "best.yaml").read_text()
    assert text.startswith("# trial 0 of one, val/score 0.25 in the search\n# trial 0 is the best of 2 finalists")
    assert yaml.safe_load(text) == {"lr": 0.5, "inner.depth": 2}  # of the confirming runs


def test_best_config_has_the_epochs_that_a_command_has_added(search, tmp_path):
    number = search.begin(lr=0.5, inner={"depth": 2}, precision="fp32", epochs=3)
    for epoch in range(1, 6):
        search.report(number, epoch, 0.6)
    search.end(number, "completed")
    extend = Command("extend", {"trials": [number], "epochs": 2})
    search.study.record_command(LogEntry(1, extend, Answer(True, "")))
    assert yaml.safe_load(best(tmp_path).stdout) == {"lr": 0.5, "inner.depth": 2, "epochs": 5}
    record = search.study.get_record()
    assert "--set epochs=5" in retrain_command(record, search.study.get_trial(number))


def test_command_that_trains_again_keeps_texts_that_look_like_numbers(search):
    record = search.study.get_record()
    record.about["config"] |= {"command": ["python", "train.py"], "set": {"fixed": "'7'"}}
    best = search.study.get_trial(1)
    best.params.update(a="32", b="true", c="adam", d=32, e=None)
    words = shlex.split(retrain_command(record, best))
    given = parse_fixed_values(dict(text.split("=", 1) for before, text in pairwise(words) if before == "--set"))
    del given["lr"]
    assert given == {"fixed": "7", "a": "32", "b": "true", "c": "adam", "d": 32, "e": None}


def test_search_without_a_result_has_no_best_config(tmp_path):
    search = Search(tmp_path)
    search.run(outcome="failed", reason="no luck")
    refused = best(tmp_path)
    assert (refused.exit_code, refused.stderr) == (
        2,
        "name must be a search with a result, but no trial of one has one.\n",
    )
    (tmp_path / "best.yaml").write_text("lr: 1.0\n")  # of a driver before a trial was taken back
    assert not write_best_params(replace(SearchResult.from_record(search.study.get_record()), best=None), tmp_path)
    assert not (tmp_path / "best.yaml").exists()
    search.store.close()
