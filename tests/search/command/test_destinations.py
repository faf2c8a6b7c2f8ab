import shutil
import sys
from pathlib import Path

import pytest

from searchlight.search.command.destinations import Destinations, resolve_parameters
from searchlight.search.command.flags import Parameter
from searchlight.search.command.options import CommandOptions
from searchlight.search.command.script import find_script_command
from searchlight.search.errors import UsageError
from searchlight.trainables.command.settings import FileTarget, Flag
from searchlight.trainables.command.template import list_flags

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def folder(tmp_path):
    shutil.copy(PROGRAMS / "argparse_program.py", tmp_path / "train.py")
    (tmp_path / "config.yaml").write_text("optimizer:\n  lr: 0.1\n  name: adam\nseed: 0\n")
    (tmp_path / "config.toml").write_text("lr = 0.1\n")
    (tmp_path / "net.py").write_text("DEPTH = 2\n\ndef build(width=16):\n    lr = 1\n    lr = 2\na = b = 3\n")
    return tmp_path


def resolve(folder, words=(), parameters=(), **options):
    command = (sys.executable, "train.py", "data", *words)
    given = [Parameter(name, "--search", values) for name, values in dict(parameters).items()]
    return resolve_parameters(CommandOptions(command=command, **options), given, folder)


def test_each_parameter_has_one_destination(folder):
    parameters = {"lr": [0.1, 0.5], "batch-size": [1, 2], "depth": [1, 2], "opt.weight_decay": [0.0, 0.1], "seed": [1]}
    found = resolve(
        folder,
        ["{config.yaml}", "--seed={seed}", "--betas", "{opt.weight-decay}", "0.9"],
        parameters,
        to=["config.yaml:optimizer.lr=lr"],
        patch=["net.py:DEPTH=depth"],
    )
    assert found == Destinations(
        {"batch-size": Flag(("--batch_size", "{value}"))},
        (FileTarget("config.yaml", "optimizer.lr", "lr"),),
        (FileTarget("net.py", "DEPTH", "depth"),),
        {"lr": "0.1", "depth": "2", "batch-size": "3"},
    )


def test_program_is_not_started_if_each_parameter_has_a_place(folder):
    command = CommandOptions(command=("no-such-program", "--lr={lr}"))
    assert resolve_parameters(command, [Parameter("lr", "--search", [0.1])], folder) == Destinations()


@pytest.mark.parametrize("code", ["print('loss: 0.5')", "import time; time.sleep(600)"])
def test_program_without_options_needs_none_for_its_epochs(folder, code):
    (folder / "train.py").write_text(f"LR = 0.1\n{code}")
    command = CommandOptions(command=(sys.executable, "train.py"), patch=["train.py:LR=lr"])
    given = [Parameter("lr", "--search", [0.1]), Parameter("epochs", "--set", [3])]
    assert resolve_parameters(command, given, folder, limit=5).flags == {}
    (folder / "train.py").write_text("LR = 0.1\nraise SystemExit('no --help')")
    with pytest.raises(UsageError, match="ended with exit code 1: no --help"):
        resolve_parameters(command, given, folder, limit=60)


def test_flags_none_leaves_parameters_to_the_environment(folder):
    assert resolve(folder, parameters={"anything": [1]}, flags="none") == Destinations()


def test_seed_has_the_flag_that_the_user_names(folder):
    found = resolve(folder, ["--lr={lr}"], {"lr": [0.1], "seed": [1]}, seed_flag="seed")
    assert found.flags == {"seed": Flag(("--seed", "{value}"))}
    with pytest.raises(UsageError, match=r"--seed-flag sed must be an option of train.py.* Did you mean seed\?"):
        resolve(folder, ["--lr={lr}"], {"lr": [0.1]}, seed_flag="sed")


def test_style_of_flags_needs_no_help(folder):
    command = CommandOptions(command=("no-such-program", "--lr={lr}"), flags="--{name}={value}")
    given = [Parameter(name, "--search", [0.1]) for name in ("lr", "dropout", "epochs")]
    assert resolve_parameters(command, given, folder).flags == {"dropout": Flag(("--dropout={value}",))}


NARGS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("config")
parser.add_argument("--cfg-options", nargs="+", help="key=value")
parser.add_argument("-o", "--override", action="append")
parser.parse_args()
raise SystemExit("it must not train")
"""
TWO = {"lr": [0.1, 0.5], "optimizer.momentum": [0.1, 0.9]}


def resolve_style(folder, style, words=(), parameters=TWO):
    (folder / "tool.py").write_text(NARGS)
    command = CommandOptions(command=(sys.executable, "tool.py", "x.yaml", *words), flags=style)
    given = [Parameter(name, "--search", values) for name, values in parameters.items()]
    return list_flags(resolve_parameters(command, given, folder).flags, {"lr": 0.2, "optimizer.momentum": 0.3})


def test_option_of_several_words_comes_once_before_all_parameters(folder):
    joined = ["--cfg-options", "lr=0.2", "optimizer.momentum=0.3"]
    assert resolve_style(folder, "--cfg-options {name}={value}") == joined
    pairs = ["--cfg-options", "lr", "0.2", "optimizer.momentum", "0.3"]
    assert resolve_style(folder, "--cfg-options {name} {value}") == pairs
    repeated = ["-o", "lr=0.2", "-o", "optimizer.momentum=0.3"]
    assert resolve_style(folder, "-o {name}={value}", ["-o", "a=1"]) == repeated


@pytest.mark.parametrize(
    ("style", "words", "parameters", "rule"),
    [
        ("--cfg {name}={value}", [], TWO, "must name an option that tool.py --help shows, to know whether"),
        ("--cfg-options {name}={value}", ["--cfg-options", "a=1"], {"lr": [0.1]}, "must not repeat --cfg-options of"),
    ],
)
def test_style_whose_words_would_be_lost_is_refused(folder, style, words, parameters, rule):
    with pytest.raises(UsageError, match=rule) as error:
        resolve_style(folder, style, words, parameters)
    named = [style.split()[0], *(f"{name}={{{name}}}" for name in parameters)]
    assert str(error.value).endswith(f"Name them in the command: {' '.join(named)}")


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (["{lrr}"], {}, "{lrr} in the command must be a parameter, or have double braces to stay as it is. Did you"),
        (["{epochs}"], {}, "{epochs} in the command must come with --set epochs=N: how many reports a trial makes."),
        (["{lr}"], {"resume_with": "--resume {chekpoint_dir}"}, "Did you mean checkpoint_dir?"),
        (["{lr}"], {"metrics_file": "{trial_dri}/log.csv"}, "Did you mean trial_dir?"),
        (["{lr}"], {"to": ["config.yaml:optimizer.lr=lr"]}, "that has no other place, but the command has {lr}."),
        (["{lr}"], {"to": ["config.yaml:optimizer.lr=rl"]}, "but rl is none. Choose from lr, seed."),
        ([], {"to": ["config.yaml:optimizer.rl=lr"]}, "single value in config.yaml, but there is none. Did you mean"),
        ([], {"to": ["config.yaml:optimizer=lr"]}, "in config.yaml. Choose from optimizer.lr, optimizer.name."),
        ([], {"metric": [r"val_loss=([-\d.]+)"]}, r"e.g. 'val_loss=val_loss=([-\d.]+)', or 'val_loss=^([-\d.]+)$'"),
        ([], {"to": ["confg.yaml:lr=lr"]}, "must name a file that exists, but there is no"),
        ([], {"to": ["net.py:DEPTH=lr"]}, "must name a file that ends with .yaml, .yml, .json or .toml."),
        ([], {"patch": ["config.yaml:lr=lr"]}, "--patch config.yaml:lr must name a file that ends with .py."),
        ([], {"patch": ["/tmp/net.py:lr=lr"]}, "must name a file in"),
        ([], {"patch": ["net.py:build.lr=lr"]}, "must be one value, but net.py has it on the lines 4 and 5."),
        ([], {"patch": ["net.py:build.wdth=lr"]}, "Did you mean build.width?"),
        ([], {"patch": ["net.py:a=lr"]}, "another value of the file would change too"),
        ([], {"patch": ["net.py"]}, "--patch must be like train.py:main.config.lr=lr, but got 'net.py'."),
        ([], {"patch": ["net.py:DEPTH=lr"], "cwd": "here"}, "--cwd must be trial with --patch net.py"),
        ([], {"to": ["config.toml:lr=lr"], "cwd": "here"}, "the command must name its copy by {config.toml}."),
        ([], {"to": ["config.toml:lr=lr", "config.toml:lr=lr"]}, "config.toml:lr must take one parameter, but got 2."),
        ([], {"flags": "--{name}"}, "--flags must be auto, none or like '--{name}={value}', but"),
    ],
)  # fmt: skip
def test_destination_that_does_not_exist_is_refused(folder, words, options, message):
    with pytest.raises(UsageError) as error:
        resolve(folder, words, {"lr": [0.1, 0.2]}, **options)
    assert message in str(error.value)


@pytest.mark.parametrize("target", [{"patch": ["net.py:DEPTH=lr"]}, {"to": ["config.yaml:seed=lr"]}])
@pytest.mark.parametrize("begin", ["", "--file="])
def test_file_that_the_command_names_by_its_folder_is_refused(folder, target, begin):
    file = folder / next(iter(target.values()))[0].partition(":")[0]
    with pytest.raises(UsageError) as error:
        resolve(folder, [f"{begin}{file}"], {"lr": [1, 2]}, **target)
    rule = f"the command must name {file.name} without its folder, because a trial changes a copy of {file}."
    assert str(error.value) == rule


@pytest.mark.parametrize("words", [["--sed", "3"], ["--momentum=0.9"], ["--batch-sizes", "3", "--seed=1"]])
def test_word_of_the_command_that_is_no_option_is_refused(folder, words):
    with pytest.raises(UsageError) as error:
        resolve(folder, words, {"lr": [0.1, 0.2]})
    name = words[0].partition("=")[0]
    (line,) = error.value.problems
    assert line.startswith(f"{name} in the command must be an option of train.py, but it has none of that name. ")
    assert line.endswith(" If it takes this one, too, give --flags '--{name}={value}'.")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("", "", ["--see", "3", "--batch=3"]),  # argparse takes the begin of a name
        ("vars(parser.parse_args())", "str(parser.parse_known_args())", ["--momentum=0.9"]),
        ("import json", "import json  # a file of mine takes --sed away", ["--sed=3"]),
    ],
)
def test_word_that_the_program_may_take_is_kept(folder, old, new, words):
    script = folder / "train.py"
    text = script.read_text()
    assert old in text
    script.write_text(text.replace(old, new))
    resolve(folder, words, {"lr": [0.1, 0.2]})


def test_required_argument_of_fire_may_be_an_option(folder):
    shutil.copy(PROGRAMS / "fire_program.py", folder / "train.py")
    text = (folder / "train.py").read_text().replace("train(data,", "train(base_lrs,")
    (folder / "train.py").write_text(text.replace("lr=0.1", "base_lr=0.1"))
    command = CommandOptions(command=(sys.executable, "train.py", "--base_lrs=x"))
    found = resolve_parameters(command, [Parameter("base_lr", "--search", [0.1])], folder)
    assert "base_lr" in found.flags


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("type=int", "Name it there: --level {level} train"),
        ("action='store_true'", "A switch there cannot be searched."),
    ],
)
def test_option_before_a_subcommand_is_said_to_belong_there(folder, kind, remedy):
    (folder / "tool.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\n"
        f"parser.add_argument('--level', {kind})\n"
        "parser.add_subparsers(required=True).add_parser('train').add_argument('--lr')\nparser.parse_args()\n"
    )
    given = [Parameter("level", "--search", [1, 2]), Parameter("lr", "--search", [0.1])]
    with pytest.raises(UsageError) as error:
        resolve_parameters(CommandOptions(command=(sys.executable, "tool.py", "train")), given, folder)
    rule = "--search level must be an option of train, but --level belongs before train."
    assert str(error.value) == f"{rule} {remedy}"


def test_parameter_in_capitals_goes_to_its_place(folder):
    found = resolve(folder, [], {"DEPTH": [1, 2]}, patch=["net.py:DEPTH=DEPTH"])
    assert found.patches == (FileTarget("net.py", "DEPTH", "DEPTH"),)


def test_value_that_a_format_lacks_is_refused(folder):
    with pytest.raises(UsageError, match=r"--to config.toml:lr must take the value of lr, but TOML has no null"):
        resolve(folder, [], {"lr": [0.1, None]}, to=["config.toml:lr=lr"])


def test_parameter_that_is_no_option_is_refused(folder):
    with pytest.raises(UsageError) as error:
        resolve(folder, ["--seed={seed}"], {"batch-sizes": [1, 2], "lr": [0.1]})
    rule = "must be an option of train.py, but it has none of that name."
    assert str(error.value) == f"--search batch-sizes {rule} Did you mean batch_size?"


@pytest.mark.parametrize(
    ("end", "first"),
    [
        ("parser.add_argument('--wd')\nparser.parse_args()", "--search lr must be an option of constants.py"),
        ("", "constants.py --help must show the options of the program, but shows none"),
    ],
)
def test_constants_of_a_script_are_proposed_in_place_of_options(folder, end, first):
    code = "LR = 0.1\nclass Model:\n    width = 8\ndef main(depth=2):\n    twice = 1\n    twice = 2\n"
    (folder / "constants.py").write_text(f"import argparse\nparser = argparse.ArgumentParser()\n{code}{end}\n")
    names = ("lr", "width", "depth", "twice", "other")
    given = [Parameter(name, "--search", [1, 2]) for name in names]
    with pytest.raises(UsageError) as error:
        resolve_parameters(CommandOptions(command=(sys.executable, "constants.py")), given, folder)
    *problems, proposal = error.value.problems
    patches = ("LR=lr", "Model.width=width", "main.depth=depth")
    options = " ".join(f"--patch constants.py:{patch}" for patch in patches)
    assert first in problems[0]
    assert proposal == f"constants.py has values with these names in its code. To search them there, give {options}."


PARAMS = 'import searchlight\nlr, more = searchlight.params()["lr"], searchlight.params().get("opt.eps", 1)\n'
PARSER = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--wd')\n"
WITH_SEED = f"{PARSER}parser.add_argument('--seed', type=int)\nparser.parse_args()\n"
SPREAD = "import searchlight\ndef main(lr=0.1, **others):\n    others['seed']\nmain(**searchlight.params())\n"


def resolve_asking(folder, code, parameters, words=(), source="--search", **options):
    (folder / "asking.py").write_text(code)
    given = [Parameter(name, source, [1, 2]) for name in parameters]
    return resolve_parameters(CommandOptions(command=(sys.executable, "asking.py", *words), **options), given, folder)


def test_script_that_asks_for_its_parameters_needs_no_options(folder):
    code = f"{PARAMS}raise SystemExit('it was started')"
    found = resolve_asking(folder, code, ["lr", "opt.eps", "epochs"])
    assert found == Destinations(defaults={"opt.eps": "1"})
    assert resolve_asking(folder, code, ["opt.eps"], flags="none") == found


def test_script_with_options_asks_for_what_is_none_of_them(folder):
    code = f"{PARSER}parser.parse_args()\n{PARAMS}"
    found = resolve_asking(folder, code, ["lr", "wd", "opt.eps"])
    assert found.flags.keys() == {"wd"}
    assert found.defaults == {"opt.eps": "1"}
    with pytest.raises(UsageError, match=r"^--search other must be an option of asking\.py, but it has none"):
        resolve_asking(folder, code, ["lr", "wd", "other"])


def test_options_of_another_file_come_before_what_a_script_asks_for(folder):
    (folder / "reading.py").write_text(f"{PARSER}parser.add_argument('--lr')\nargs = parser.parse_args()\n")
    code = "from reading import args\nimport searchlight\nlr = searchlight.params().get('lr', args.lr)\n"
    found = resolve_asking(folder, code, ["lr"], ["--lr", "0.3"])
    assert found.flags.keys() == {"lr"}
    assert found.defaults == {"lr": "0.3"}


def test_script_that_has_no_help_asks_for_what_its_code_takes(folder):
    code = f"import sys\n{PARAMS}print(sys.argv)\n"
    assert resolve_asking(folder, code, ["lr"], ["data"]) == Destinations()
    with pytest.raises(UsageError, match="must show the options of the program, but shows none"):
        resolve_asking(folder, code, ["lr", "other"], ["data"])


def test_seed_of_an_option_comes_before_that_of_the_code(folder):
    code = f"{WITH_SEED}import searchlight\nsearchlight.params()['seed'], searchlight.params()['lr']\n"
    for flags in ("auto", "--{name}={value}"):
        found = resolve_asking(folder, code, ["lr"], seed_flag="seed", flags=flags)
        assert list_flags({"seed": found.flags["seed"]}, {"seed": 5})[-1].endswith("5")
    assert resolve_asking(folder, code, ["lr"]).flags == {"seed": Flag(())}
    assert resolve_asking(folder, code, ["lr", "seed"], source="--set").flags.keys() == {"seed"}


def test_seed_that_code_takes_as_a_whole_is_named_by_the_user(folder):
    assert resolve_asking(folder, SPREAD, ["lr"]).flags == {}
    assert resolve_asking(folder, SPREAD, ["lr"], seed_flag="seed").flags == {"seed": Flag(())}


def test_called_function_takes_parameters_as_arguments(folder):
    code = "LR = 1\ndef main(lr, width=8, seed=0): ...\nraise SystemExit('it was imported')"
    (folder / "called.py").write_text(code)
    command = find_script_command("called.py:main", folder, {"lr"})
    given = [Parameter(name, "--search", [1, 2]) for name in ("lr", "width", "epochs")]
    found = resolve_parameters(CommandOptions(command=command), given, folder)
    assert found == Destinations({"seed": Flag(())}, defaults={"width": "8"})
    with pytest.raises(UsageError, match=r"^--search depth must be a parameter of called\.py:main, but is none\."):
        resolve_parameters(CommandOptions(command=command), [*given, Parameter("depth", "--search", [1])], folder)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"flags": "--{name}={value}"},
            "--flags must be left out, because called.py:main takes the parameters itself.",
        ),
        (
            {"seed_flag": "random_state"},
            "--seed-flag random_state must be left out, because called.py:main takes the seed as an argument of the "
            "name seed. Rename it.",
        ),
    ],
)
def test_option_that_fits_no_function_is_refused(folder, options, problem):
    (folder / "called.py").write_text("def main(lr, random_state=0): ...")
    command = find_script_command("called.py:main", folder, {"lr"})
    with pytest.raises(UsageError) as error:
        resolve_parameters(CommandOptions(command=command, **options), [Parameter("lr", "--search", [1, 2])], folder)
    assert str(error.value) == problem


def test_name_that_a_script_does_not_ask_for_is_refused(folder):
    with pytest.raises(UsageError) as error:
        resolve_asking(folder, f"width = 1\n{PARAMS}", ["opt.esp", "width", "lr"], seed_flag="manual_seed")
    key, remedy = "must be a key that the code takes of searchlight.params(), but is none.", "give --flags none."
    option = "must be an option of the program, or seed if its code takes that of searchlight.params(), but is none."
    assert error.value.problems == (
        f"--search opt.esp {key} Did you mean opt.eps? If other code takes it, {remedy}",
        f"--search width {key} Choose from lr, opt.eps. If other code takes it, {remedy}",
        f"--seed-flag manual_seed {option} Choose from lr, opt.eps. If other code takes it, {remedy}",
        "asking.py has values with these names in its code. To search them there, give --patch asking.py:width=width.",
    )
    assert resolve_asking(folder, PARAMS, ["opt.esp"], flags="none") == Destinations()
