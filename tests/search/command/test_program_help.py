import errno
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from searchlight.search.command import program_help
from searchlight.search.command.flags import Parameter, choose_flags, find_defaults
from searchlight.search.command.help_text import ProgramOption, parse_help
from searchlight.search.command.program_help import read_declarations, read_options
from searchlight.search.errors import UsageError
from searchlight.trainables.command.template import list_flags
from searchlight.trainables.flatten import flatten

PROGRAMS = Path(__file__).parent / "programs"
HELP = Path(__file__).parent / "help"
# By library: words of the command before the flags, and parameters by the name that a user may write.
CASES = {
    "argparse": (
        ["data"],
        {"lr": -1e-05, "batch-size": 4, "optimizer": "sgd", "fp16": True, "cache": False, "no_cuda": False}
        | {"opt.weight_decay": 0.5, "layers": 7},
    ),
    "click": (
        ["train"],
        {"lr": 1e-05, "optimizer": "sgd", "fp16": False, "cache": False, "dropout": -0.5, "n_layers": 2},
    ),
    "typer": (["data"], {"lr": 1e-05, "batch_size": 4, "optimizer": "sgd", "fp16": True}),
    "tyro": ([], {"learning_rate": 1e-05, "anneal_lr": False, "kind": "b", "opt.weight_decay": 0.5, "target-kl": 0.5}),
    "transformers": (["--model_name", "bert"], {"learning_rate": 1e-05, "kind": "b", "fp16": True, "use_fast": False}),
    "jsonargparse": ([], {"lr": 1e-05, "fp16": True, "model.depth": 3, "model.dropout": None}),
    "lightning": (["fit"], {"model.learning_rate": 1e-05, "model.use_bias": True, "data.batch_size": 7}),
    "hydra": (
        ["optimizer=sgd"],
        {"lr": 1e-05, "fp16": True, "model.depth": 4, "optimizer.momentum": 0.5, "optimizer.name": "a, b={c}"},
    ),
    "fire": (["data"], {"lr": 1e-05, "depth": 4, "fp16": True}),
    "absl": ([], {"lr": 1e-05, "batch_size": 4, "fp16": True, "optimizer": "sgd"}),
}
SLOW = ("transformers", "lightning")  # to import


def parameters_of(values):
    return [Parameter(name, "--search", [value]) for name, value in values.items()]


def command_of(library):
    name = {"transformers": "hf"}.get(library, library)
    return [sys.executable, f"{name}_program.py", *CASES[library][0]]


@pytest.mark.parametrize(
    "library", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CASES]
)
def test_program_gets_the_values_by_the_options_of_its_help(library, tmp_path):
    command, values = command_of(library), CASES[library][1]
    flags = choose_flags(read_options(command, PROGRAMS, {}), parameters_of(values), "train.py")
    words = [*command, *list_flags(flags, values)]
    folder = shutil.copytree(PROGRAMS, tmp_path / "programs")  # Hydra writes its own files
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    got = flatten(json.loads(done.stdout.splitlines()[-1]))
    expected = {name.replace("-", "_"): [value] if name == "layers" else value for name, value in values.items()}
    assert {name: got[name] for name in expected} == expected


@pytest.mark.parametrize("library", [name for name in CASES if name not in SLOW])
def test_recorded_help_has_the_options_of_the_program(library):
    """So that texts of libraries that are not installed are tested. A source says more than the text of argparse."""
    shown = read_options(command_of(library), PROGRAMS, {})
    recorded = parse_help((HELP / f"{library}.txt").read_text())
    pairs = zip(recorded, shown, strict=True)
    assert [replace(option, type=other.type, default=other.default) for option, other in pairs] == shown
    assert all(option.default in (None, other.default) for option, other in zip(recorded, shown, strict=True))


@pytest.mark.parametrize("library", CASES)
def test_recorded_help_has_an_option_for_each_parameter(library):
    options = parse_help((HELP / f"{library}.txt").read_text())
    assert choose_flags(options, parameters_of(CASES[library][1]), "train.py").keys() == CASES[library][1].keys()


def test_types_and_choices_of_a_help_are_known():
    options = parse_help((HELP / "click.txt").read_text())
    assert options == [
        ProgramOption(("--lr",), "FLOAT", type="float", default="0.1"),
        ProgramOption(("--optimizer",), "[adam|sgd]", choices=("adam", "sgd")),
        ProgramOption(("--fp16",)),
        ProgramOption(("--cache", "--no-cache")),
        ProgramOption(("-d", "--dropout"), "FLOAT RANGE", type="float"),
        ProgramOption(("--n-layers",), "INTEGER", type="int"),
    ]


# By library: what its help says about defaults, by the name that a user may write.
DEFAULTS = {
    "argparse": {"learning-rate": "0.1", "fp16": "False", "no_cuda": "False"},
    "click": {"lr": "0.1", "fp16": "False"},
    "typer": {"lr": "0.1", "batch_size": "3", "optimizer": "adam", "fp16": "False"},
    "tyro": {"learning-rate": "0.00025", "anneal_lr": "True", "no-anneal-lr": "False", "target-kl": "None"},
    "transformers": {"learning_rate": "5e-05"},
    "jsonargparse": {"lr": "0.1", "fp16": "False", "model.depth": "2", "model.dropout": "null"},
    "lightning": {"model.learning_rate": "0.001", "data.batch_size": "32", "trainer.enable_progress_bar": "null"},
    "hydra": {"lr": "0.1", "fp16": "False", "model.depth": "3", "optimizer.momentum": "0.9"},
    "fire": {"lr": "0.1", "depth": "2", "fp16": "False"},
    "absl": {"lr": "0.1", "batch_size": "3", "fp16": "False", "optimizer": "adam"},
}
UNKNOWN = {"argparse": ["b", "cache"], "click": ["cache", "dropout"], "transformers": ["kind"], "hydra": ["optimizer"]}


@pytest.mark.parametrize("library", DEFAULTS)
def test_defaults_of_the_program_are_those_of_its_help(library):
    options = parse_help((HELP / f"{library}.txt").read_text())
    parameters = parameters_of({**DEFAULTS[library], **dict.fromkeys(UNKNOWN.get(library, []))})
    assert find_defaults(options, parameters) == DEFAULTS[library]


def test_hydra_tells_groups_and_keys():
    options = parse_help((HELP / "hydra.txt").read_text())
    assert ProgramOption(("optimizer",), "VALUE", "=", choices=("adam", "sgd"), is_hydra=True) in options
    assert {"lr", "model.depth", "optimizer.momentum"} <= {option.names[0] for option in options}


def test_options_before_help_have_values_that_the_program_accepts():
    command = [sys.executable, "argparse_program.py", "data", "--seed", "{seed}", "--lr={lr}"]
    assert read_options(command, PROGRAMS, {"lr": 0.5})


def test_types_that_argparse_does_not_show_are_read_from_the_script(tmp_path):
    kinds = {"--width": "int", "--lr": "float", "--name": "str"}
    adds = "".join(f"parser.add_argument({name!r}, type={kind})\n" for name, kind in kinds.items())
    (tmp_path / "train.py").write_text(
        f"import argparse\nparser = argparse.ArgumentParser()\n{adds}parser.parse_args()"
    )
    options = read_options([sys.executable, "train.py"], tmp_path, {})
    assert {option.default for option in options} == {None}
    assert {option.names[0]: option.type for option in options} == {"--width": "int", "--lr": "float", "--name": ""}
    with pytest.raises(UsageError, match=r"must be integers, because --width of train\.py takes WIDTH, but got 8\.0"):
        choose_flags(options, [Parameter("width", "--search", [8.0, 64.0])], "train.py")


def test_program_without_help_needs_a_style_or_places():
    with pytest.raises(UsageError, match=r"exit code 1: AssertionError: --help\. Give each parameter a place") as error:
        read_options([sys.executable, "no_help_program.py"], PROGRAMS, {})
    assert "--flags '--{name}={value}'" in str(error.value)


def test_program_that_trains_is_stopped_and_writes_nothing_beside_itself(tmp_path):
    (tmp_path / "train.py").write_text((PROGRAMS / "endless_program.py").read_text())
    with pytest.raises(UsageError, match="was stopped after 3 s, because it may have begun to train"):
        read_options([sys.executable, "train.py"], tmp_path, {}, limit=3)
    assert [file.name for file in tmp_path.iterdir()] == ["train.py"]


def test_program_is_known_to_train_by_the_metric_that_it_prints(tmp_path, monkeypatch):
    monkeypatch.setattr(program_help, "REST_S", 0.5)
    (tmp_path / "train.py").write_text((PROGRAMS / "endless_program.py").read_text())
    command, metrics = [sys.executable, "train.py"], ("loss=loss ([0-9.]+)",)
    with pytest.raises(UsageError, match=r"was stopped, because it trains: it printed 'epoch 1: loss 0\.5'"):
        read_options(command, tmp_path, {}, limit=100, metrics=metrics)
    assert read_options(command, tmp_path, {}, limit=100, metrics=metrics, needs_some=False) == []


def test_help_with_a_metric_as_an_example_is_read(tmp_path):
    parser = "argparse.ArgumentParser(description='It prints loss 0.5.')"
    (tmp_path / "train.py").write_text(
        f"import argparse\nparser = {parser}\nparser.add_argument('--lr')\nparser.parse_args()\n"
    )
    (option,) = read_options([sys.executable, "train.py"], tmp_path, {}, metrics=("loss=loss ([0-9.]+)",))
    assert option.names == ("--lr",)


def test_help_of_a_program_that_does_not_end_after_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(program_help, "REST_S", 0.5)
    text = "usage: train.py [--lr LR]\n\noptions:\n  --lr LR  loss 0.5"
    (tmp_path / "train.py").write_text(f"import threading\nprint({text!r})\nthreading.Event().wait()\n")
    (option,) = read_options([sys.executable, "train.py"], tmp_path, {}, metrics=("loss=loss ([0-9.]+)",))
    assert option.names == ("--lr",)


@pytest.mark.parametrize("place", ["''", "'logs'", "Path(__file__).resolve().parent", "Path(tool.__file__).parent"])
def test_program_that_ignores_help_changes_no_file_of_the_user(tmp_path, monkeypatch, place):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    (tmp_path / "logs").mkdir()
    (tmp_path / "tool.py").touch()
    for folder in (tmp_path, tmp_path / "logs"):
        (folder / "results.csv").write_text("header\n")
    write = "[open(Path(folder) / name, 'a').write('more') for name in ('results.csv', 'new.txt')]"
    (tmp_path / "train.py").write_text(f"from pathlib import Path\nimport tool\nfolder = {place}\n{write}")
    before = {path: path.stat().st_size for path in tmp_path.rglob("*")}
    with pytest.raises(UsageError, match="shows none"):
        read_options([sys.executable, "train.py"], tmp_path, {})
    assert {path: path.stat().st_size for path in tmp_path.rglob("*")} == before


def test_output_that_cannot_be_kept_is_named(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("print('usage: train.py [--lr LR]')")
    open_file = Path.open

    def refuse(path, mode="r", *arguments, **options):
        if path.name == "output.txt" and mode.startswith("a"):
            raise OSError(errno.ENOSPC, "as the disk says", str(path))
        return open_file(path, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UsageError, match=r"but its output cannot be kept: .* as the disk says: '.*output\.txt'"):
        read_options([sys.executable, "train.py"], tmp_path, {}, 60.0)


def test_program_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(UsageError, match="but no-such-program cannot be started: No such file"):
        read_options(["no-such-program"], tmp_path, {})


def test_launcher_is_left_out():
    command = ["torchrun", "--nproc_per_node={nproc}", "argparse_program.py", "data"]
    assert read_options(["env", f"PATH={Path(sys.executable).parent}", *command], PROGRAMS, {})


@pytest.mark.parametrize(("more", "default"), [("", "0.01"), ("parser.set_defaults(lr=2.0)\n", None)])
def test_default_that_argparse_does_not_show_is_read_from_the_script(tmp_path, more, default):
    add = 'parser.add_argument("--lr", type=float, default=1e-2)\nparser.add_argument("--fast", action="store_true")\n'
    (tmp_path / "train.py").write_text(
        f"import argparse\nparser = argparse.ArgumentParser()\n{add}{more}parser.parse_args()"
    )
    options = read_options([sys.executable, "train.py"], tmp_path, {})
    assert {option.names[0]: option.default for option in options} == {"--lr": default, "--fast": None}


def test_option_of_several_subcommands_has_only_what_all_of_them_declare(tmp_path):
    adds = ["'--lr', type=float, default=0.1", "'--lr', type=float, default=0.001", "'--lr', type=float, default=0.1"]
    adds += ["'--depth', type=int, default=2", "'--depth', default=2", "'--width', type=int, default=8"] * 2
    (tmp_path / "train.py").write_text("\n".join(f"parser.add_argument({add})" for add in adds))
    expected = {"--lr": ("float", None), "--depth": ("", "2"), "--width": ("int", "8")}
    assert read_declarations(tmp_path / "train.py") == expected
