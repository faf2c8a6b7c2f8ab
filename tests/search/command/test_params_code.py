import sys

import pytest

from searchlight.search.command.flags import Parameter
from searchlight.search.command.options import CALL_OBJECTIVE
from searchlight.search.command.params_code import read_params_code
from searchlight.trainables.command.call import CALL_FUNCTION

GIVEN = "import searchlight\nparams = searchlight.params()\n"


@pytest.fixture
def read(tmp_path):
    """Reads what a script with some code takes."""

    def read(code, *words):
        (tmp_path / "train.py").write_text(code)
        return read_params_code([sys.executable, *(words or ["train.py"])], tmp_path)

    return read


@pytest.mark.parametrize(
    "code",
    [
        "import searchlight\nsearchlight.params()['lr']",
        "\ufeffimport searchlight\nsearchlight.params()['lr']",
        "import searchlight as sl\nprint(sl.params()['lr'])",
        "from searchlight import (\n    report,\n    params as given,\n)\nif 'lr' in given():\n    pass",
        "from searchlight import params\nparams = params()\nparams['lr']",
        GIVEN + "params.get('lr')",
        GIVEN + "config = {**DEFAULTS, **params}\nif params:\n    print(params, f'{params}')\nconfig['lr']",
        "import searchlight\nconfig = searchlight.params() or {}\nconfig['lr']",
    ],
)
def test_keys_are_those_that_code_takes(read, code):
    found = read(code)
    assert found.defaults == {"lr": ""}
    assert not found.words


@pytest.mark.parametrize(
    "code",
    [
        "import searchlight\nother.params()['lr']",
        "params()['lr']",
        "import searchlight\nsearchlight.report(step=1, loss=1)",
        "from searchlight import (",
        "# searchlight.params()['lr']",
    ],
)
def test_code_without_a_call_takes_nothing(read, code):
    assert read(code) is None


@pytest.mark.parametrize(
    ("code", "default"),
    [
        ("params.get('lr', 1e-3)", "0.001"),
        ("params.get('lr', -2)", "-2"),
        ("params.get('lr', 'adam')", "adam"),
        ("params.get('lr', False)", "False"),
        ("params.get('lr', None)", "None"),
        ("params.get('lr', 1), params['lr']", "1"),
        ("params.get('lr', 1), params.get('lr', 2)", ""),
        ("params.get('lr', 1), params.get('lr', base)", ""),
        ("params['lr']", ""),
    ],
)
def test_default_is_what_code_gets_without_a_search(read, code, default):
    assert read(GIVEN + code).defaults == {"lr": default}


def test_keys_of_other_dicts_are_no_parameters(read):
    code = "import json, os\ncfg = json.loads(text)\ncfg['seed'], cfg.get('width', 1), os.environ.get('depth')\n"
    assert read(f"{GIVEN}{code}params['lr']").defaults.keys() == {"lr"}


@pytest.mark.parametrize(
    "code",
    [
        "@dataclass\nclass Config:\n    lr: float = 0.1\n    seed: int = 7\n    width: int\nConfig(**params)",
        "def main(lr, *, seed=7, width): pass\nmain(1, **params)",
        "def main(width, lr=0.1, seed=7): pass\nmain(**searchlight.params())",
    ],
)
def test_fields_and_arguments_are_keys_of_what_they_get(read, code):
    found = read(GIVEN + code)
    assert found.defaults.keys() == {"lr", "seed", "width"}
    assert found.defaults["seed"] == "7"
    assert not found.words


@pytest.mark.parametrize(
    "code", ["def main(lr=1, **others): pass", "class main(Base):\n    lr: int = 1", "from other import main"]
)
def test_definition_that_may_take_more_may_take_each_word(read, code):
    found = read(f"{GIVEN}{code}\nmain(**params)\ndepth = 1\n")
    assert found.takes(Parameter("depth", "--search", [1]))


@pytest.mark.parametrize("use", ["train(**params)", "config.update(params)", "train(params)", "params.items()"])
def test_use_as_a_whole_may_take_each_word(read, use):
    found = read(f"{GIVEN}def main(lr=0.1, *, width: int = 8): pass\n{use}\n# depth\n")
    taken = [name for name in ("lr", "net.width", "depth") if found.takes(Parameter(name, "--search", [1]))]
    assert taken == ["lr", "net.width"]


@pytest.mark.parametrize(
    ("code", "words", "may"),
    [
        ("columns = ['click', 'user']  # no argparse, no sys.argv\nmodel.fire()", [], False),
        ("from transformers import AutoModel", [], False),
        ("from transformers import HfArgumentParser", [], True),
        ("import click", [], True),
        ("def main():\n    from argparse import ArgumentParser", [], True),
        ("import sys\nsys.argv", [], True),
        ("", ["--lr", "0.3"], True),
        ("", ["data", "{seed}"], False),
    ],
)
def test_program_may_have_options_if_its_code_or_its_command_says_so(read, code, words, may):
    assert read(f"{code}\n{GIVEN}params['lr']", "train.py", *words).may_have_options == may


@pytest.mark.parametrize("path", ["train.py", "train"])
def test_arguments_of_a_called_function_are_keys(read, path):
    method = "import sys\nclass Net:\n    def main(self): ...\n"
    code = "def main(lr, width=8, *, seed=3, **others):\n    others['eps']\n"
    found = read(method + code, "-m", CALL_FUNCTION, path, "main")
    assert found.defaults == {"lr": "", "width": "8", "seed": "3"}
    assert not found.may_have_options
    assert found.takes(Parameter("other", "--search", [1]))  # of **others
    problem = f"--search wdith must be a parameter of {path}:main, but is none. Did you mean width?"
    assert found.explain_unknown(Parameter("wdith", "--search", [1])) == problem


def test_function_outside_of_the_folder_is_read(read, tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("installed")
    (folder / "elsewhere.py").write_text("def main(lr=0.1): ...")
    monkeypatch.syspath_prepend(folder)
    assert read("", "-m", CALL_FUNCTION, "elsewhere", "main").defaults == {"lr": "0.1"}


def test_suggestions_of_an_objective_are_keys(read, tmp_path):
    (tmp_path / "nets.py").write_text("def build(trial):\n    trial.suggest_int(f'width_{i}', 1, 8)\n")
    code = "import nets\ndef main(trial, seed=0):\n    trial.suggest_float('lr', 0.0, 1.0)\n    nets.build(trial)\n"
    found = read(code, "-m", CALL_OBJECTIVE, "train.py", "main")
    taken = [
        name for name in ("lr", "seed", "width_3", "width", "trial") if found.takes(Parameter(name, "--search", [1]))
    ]
    assert taken == ["lr", "seed", "width_3"]
    assert not found.may_have_options


def test_imported_code_and_modules_are_read(read, tmp_path):
    (tmp_path / "config.py").write_text(f"{GIVEN}lr = params.get('lr', 1)")
    (tmp_path / "options.py").write_text("import argparse")
    assert read("import config").defaults == {"lr": "1"}
    assert read("import config", "-m", "train").defaults == {"lr": "1"}
    assert not read("import config").may_have_options
    assert read("import config, options").may_have_options
