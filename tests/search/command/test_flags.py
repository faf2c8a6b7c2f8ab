import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchlight.search.command.flags import (
    Parameter,
    choose_flags,
    fill_style,
    find_defaults,
    suggest_name,
    take_values,
)
from searchlight.search.command.help_text import ProgramOption, parse_help
from searchlight.search.errors import UsageError
from searchlight.trainables.command.settings import Flag
from searchlight.trainables.command.template import list_flags

OPTIONS = [
    ProgramOption(("--lr", "--learning-rate"), "LR"),
    ProgramOption(("-b", "--batch_size"), "INTEGER", type="int"),
    ProgramOption(("--dropout",), "FLOAT", "=", "float"),
    ProgramOption(("--optimizer",), "{adam,sgd}", choices=("adam", "sgd")),
    ProgramOption(("--depth",), "{1,2}", choices=("1", "2")),
    ProgramOption(("--fp16",)),
    ProgramOption(("--model.bias", "--model.no-bias")),
    ProgramOption(("--betas",), "BETAS BETAS"),
    ProgramOption(("--scheduler.help",), "[CLASS_PATH_OR_NAME]"),
    ProgramOption(("--half",), "{true,false}", type="bool", choices=("true", "false")),
    ProgramOption(("--on",), "[ON]"),
    ProgramOption(("--clip",), "{None}|FLOAT", type="float"),
]


def choose(name, *values):
    return choose_flags(OPTIONS, [Parameter(name, "--search", values)], "train.py").get(name)


@pytest.mark.parametrize(
    ("name", "values", "flag"),
    [
        ("lr", [1e-5, 1e-2], Flag(("--lr", "{value}"))),
        ("lr", [-1e-5, 1e-2], Flag(("--lr={value}",))),
        ("learning_rate", [0.1], Flag(("--learning-rate", "{value}"))),
        ("batch-size", [1, 8], Flag(("--batch_size", "{value}"))),
        ("b", [1, 8], Flag(("-b", "{value}"))),
        ("dropout", [0, 0.5], Flag(("--dropout={value}",))),
        ("depth", [1, 2], Flag(("--depth", "{value}"))),
        ("fp16", [True, False], Flag(("--fp16",))),
        ("model.bias", [True, False], Flag(("--model.bias",), ("--model.no-bias",))),
        ("model.no_bias", [True, False], Flag(("--model.no-bias",), ("--model.bias",))),
        ("scheduler.gamma", [0.5], Flag(("--scheduler.gamma", "{value}"))),
        ("half", [True, False], Flag(("--half", "{value}"))),
        ("lr", [True], Flag(("--lr", "{value}"))),
        ("lr", [1, 0], Flag(("--lr", "{value}"))),
        ("on", [True, False], Flag(("--on", "{value}"))),
        ("clip", [None, 0.5], Flag(("--clip", "{value}"))),
        ("epochs", [3], None),
    ],
)
def test_option_of_the_name_takes_the_parameter(name, values, flag):
    assert choose(name, *values) == flag


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("dropuot", [0.1], "must be an option of train.py, but it has none of that name. Did you mean dropout?"),
        ("bias", [True], "must be an option of train.py, but it has none of that name. Did you mean model.bias?"),
        ("batch_size", [0.5, 1.5], "must be integers, because --batch_size of train.py takes INTEGER, but got 0.5."),
        ("batch_size", [16.0, 64.5], "because --batch_size of train.py takes INTEGER, but got 64.5."),
        ("dropout", ["high"], "must be numbers, because --dropout of train.py takes FLOAT, but got high."),
        ("fp16", [0.1], "must be true,false, because --fp16 of train.py is a switch, but got 0.1."),
        ("lr", [True, False], "must not be true,false, because --lr of train.py takes a word: with type=bool of "
         "argparse, False is true as well. If the program reads it right, name it in the command: --lr {lr}."),
        ("optimizer", ["adam", "lion"], "adam or sgd, because --optimizer of train.py takes no others, but got lion."),
        ("betas", [0.9], "must be lists of 2 values like [1,2],..., because --betas of train.py takes 2. "
         "To search each value, name it in the command: --betas {betas1} {betas2}."),
    ],
)  # fmt: skip
def test_parameter_that_the_program_does_not_take_is_refused(name, values, message):
    with pytest.raises(UsageError) as error:
        choose(name, *values)
    assert str(error.value).startswith(f"--search {name} ")
    assert str(error.value).endswith(message)


@pytest.mark.parametrize(
    ("metavar", "value"),
    [("LAYERS [LAYERS ...]", "[64, 32]"), ("[LAYERS ...]", [64, 32]), ("LAYERS LAYERS", "[64,32]")],
)
def test_option_of_several_values_takes_a_list(metavar, value):
    options = parse_help(f"usage: train.py\n\n  --layers {metavar}  widths\n")
    flags = choose_flags(options, [Parameter("layers", "--search", [value])], "train.py")
    assert list_flags(flags, {"layers": value}) == ["--layers", "64", "32"]


@pytest.mark.parametrize(
    ("description", "default"),
    [
        ("the rate (default: 0.1)", "0.1"),
        ("[default: 0.1; x>=0]", "0.1"),
        ("[env var: LR; default: 0.1]", "0.1"),
        ("(type: float, default: 0.1, known subclasses: (a, b))", None),
        ("Default: ``1``. (type: int, default: null)", "null"),
        ("(Default: 'adam')", "adam"),
        ("by default 3", None),
        ("(default: )", ""),
    ],
)
def test_default_is_read_from_the_description(description, default):
    [option] = parse_help(f"  --name NAME  {description}")
    assert option.default == default


@pytest.mark.parametrize(
    ("names", "shown", "defaults"),
    [
        (("--cache", "--no-cache"), "no-cache", {"cache": "False", "no-cache": "True"}),
        (("-c", "--cache", "--nocache", "-C"), "true", {"cache": "True", "nocache": "False"}),
        (("--cache", "--no-cache"), None, {}),
        (("--cache",), "True", {"cache": "False"}),  # of store_false: without the switch
    ],
)
def test_switch_that_is_left_out_has_the_state_that_the_help_says(names, shown, defaults):
    parameters = [Parameter(name, "--search", [True, False]) for name in ("cache", "no-cache", "nocache")]
    assert find_defaults([ProgramOption(names, default=shown)], parameters) == defaults


@pytest.mark.parametrize(
    ("words", "kept", "given"),
    [
        (["--on", "--epochs", "3"], ["--epochs", "3"], {"on": ""}),
        (["--epochs", "3", "--on"], ["--epochs", "3"], {"on": ""}),
        (["--on", "-1", "data"], ["data"], {"on": "-1"}),
        (["--on", "-.5e-3", "data"], ["data"], {"on": "-.5e-3"}),
        (["--on=2", "--fp16"], ["--fp16"], {"on": "2"}),
        (["--lr", "-1e-3", "--fp16"], ["--fp16"], {"lr": "-1e-3"}),
    ],
)
def test_option_takes_its_value_out_of_the_command_but_no_other_option(words, kept, given):
    parameters = [Parameter(name, "--search", [1, 2]) for name in ("on", "lr")]
    assert take_values(["python", "opt.py", *words], OPTIONS, parameters) == (("python", "opt.py", *kept), given)


def test_each_problem_has_a_line():
    parameters = [Parameter("dropuot", "--search", [0.1]), Parameter("fp16", "--set", [3])]
    with pytest.raises(UsageError) as error:
        choose_flags(OPTIONS, parameters, "train.py")
    assert [problem.split(" must")[0] for problem in error.value.problems] == ["--search dropuot", "--set fp16"]


def test_many_names_are_not_listed():
    names = [f"option{number}" for number in range(100)]
    assert suggest_name("zzz", names, "train.py --help lists 100.") == "train.py --help lists 100."
    assert suggest_name("zzz", ["lr", "seed"]) == "Choose from lr, seed."


@given(st.from_regex(r"[a-z_]{1,5}(\.[a-z]{1,3})?", fullmatch=True))
def test_style_names_each_parameter(name):
    parameters = [Parameter(name, "--search", [1])]
    assert fill_style("--{name}={value}", parameters) == {name: Flag((f"--{name}={{value}}",))}
    assert fill_style("--{name} {value}", parameters) == {name: Flag((f"--{name}", "{value}"))}


def test_style_with_an_open_quotation_is_refused():
    with pytest.raises(UsageError, match=r"--flags must be words as in a shell, but got .*: No closing quotation"):
        fill_style("--{name} '{value}", [])


@pytest.mark.parametrize("style", ["--{name}", "=", "auot"])
def test_style_without_its_parts_is_refused(style):
    with pytest.raises(UsageError, match=f"--flags must be auto, none or like .* but '{style}' has no"):
        fill_style(style, [])
