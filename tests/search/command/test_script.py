import json
import subprocess
import sys

import pytest

from searchlight.search.command.functions import name_called_function
from searchlight.search.command.options import name_program
from searchlight.search.command.script import find_script_command
from searchlight.search.config import load_config
from searchlight.search.errors import UsageError

PARSER = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float)\n"
CLICK, OPTION = "import click\n", "@click.option('--lr', type=float)\n"
GUARD = "if __name__ == '__main__':\n    "
SCRIPTS = {
    "argparse": f"{PARSER}def main():\n    print(parser.parse_args().lr)\n{GUARD}main()",
    "argparse without a guard": f"{PARSER}def main():\n    print(parser.parse_args().lr)\nmain()",
    "argparse in another function": f"{PARSER}def main(args):\n    print(args.lr)\n{GUARD}main(parser.parse_args())",
    "click": f"{CLICK}@click.command()\n{OPTION}def main(lr):\n    print(lr)\n{GUARD}main()",
    "argv": f"import sys\ndef main():\n    print(float(sys.argv[2]))\n{GUARD}main()",
}
LIBRARIES = {
    "only defined": f"{PARSER}def main():\n    print(parser.parse_args().lr)\n",
    "subcommand": f"{CLICK}@click.group()\ndef cli(): ...\n"
    f"@cli.command()\n{OPTION}def main(lr):\n    print(lr)\n{GUARD}cli()",
}
FUNCTIONS = {
    "config": "def main(config): ...",
    "config with a guard": f"def main(config): ...\n{GUARD}main({{'lr': 0.1}})",
    "Ray Train": f"{PARSER}from ray import train\ndef main(config):\n    train.report({{}})\n{GUARD}main({{}})",
    "Ray Train without a config": "def main():\n    import ray.train\n    ray.train.report({})",
    "class": "class main: ...",
    "other": "def train(): ...",
    "not Python": "def main(:",
}


@pytest.mark.parametrize("kind", [*SCRIPTS, *LIBRARIES])
def test_program_gets_its_arguments(kind, tmp_path):
    (tmp_path / "my-train.py").write_text({**SCRIPTS, **LIBRARIES}[kind])
    command = find_script_command("my-train.py:main", tmp_path)
    assert (command == (sys.executable, "my-train.py")) == (kind in SCRIPTS)
    done = subprocess.run([*command, "--lr", "0.5"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == 0.5


@pytest.mark.parametrize(
    ("file", "kind"),
    [("train.py", kind) for kind in (*SCRIPTS, *LIBRARIES)]
    + [("__init__.py", kind) for kind in (*SCRIPTS, *LIBRARIES) if kind != "argparse without a guard"],  # nor as -m
)
def test_program_in_a_module_gets_its_arguments(kind, file, tmp_path):
    package = tmp_path / "package" / "inner"
    package.mkdir(parents=True)
    (package / "other.py").write_text("raise SystemExit('imported')")
    (package / "common.py").write_text("import click")
    text = {**SCRIPTS, **LIBRARIES}[kind]
    (package / file).write_text(f"from . import common\n{text}")
    module = "package.inner.train" if file == "train.py" else "package.inner"
    command = find_script_command(f"{module}:main", tmp_path)
    assert (command[1] == "-m") == (kind in SCRIPTS)
    done = subprocess.run([*command, "--lr", "0.5"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == 0.5


def test_function_of_a_config_in_a_module_is_no_program(tmp_path):
    (tmp_path / "train_it.py").write_text(FUNCTIONS["config"])
    assert find_script_command("train_it:main", tmp_path) is None


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_function_of_a_config_is_no_program(kind, tmp_path):
    (tmp_path / "train.py").write_text(FUNCTIONS[kind])
    assert find_script_command("train.py:main", tmp_path) is None


@pytest.mark.parametrize("path", ["train.py", "train"])
@pytest.mark.parametrize(
    ("code", "parameters"),
    [
        ("def main(lr): ...", {"lr"}),
        ("def main(lr, width=8, *, seed): ...", {"lr"}),
        ("def main(width, lr): ...", {"lr", "width"}),
        ("def main(lr=0.1, width=8): ...", {"width"}),
        ("def main(*, width): ...", {"width"}),
        ("def main(**others): ...", {"width"}),
        (f"def main(lr): ...\n{GUARD}study.optimize(main)", {"lr"}),
        ("def main(lr): ...\nMODELS = {'small': main}", {"lr"}),
        (f"from transformers import AutoModel\ndef main(lr): ...\n{GUARD}main(1)", {"lr"}),
        (f"from absl import logging\ndef main(lr, width=8): ...\n{GUARD}main(1)", {"lr"}),
        ("@torch.no_grad()\ndef main(lr, width=8): ...", {"lr"}),
        ("def main(optimizer, lr=0.1):\n    return optimizer.lower(), optimizer[0]", {"optimizer"}),
        ("def main(lr, width=8): ...\nsmall = partial(main, width=2)", {"lr"}),
        ("def load():\n    main, test = 1, 2\n    print(main)\ndef main(lr): ...\nDATA = load()", {"lr"}),
    ],
)
def test_function_of_the_parameters_is_called(path, code, parameters, tmp_path):
    (tmp_path / "train.py").write_text(f"raise SystemExit('imported')\n{code}")
    command = find_script_command(f"{path}:main", tmp_path, parameters)
    assert command == (sys.executable, "-m", "searchlight.trainables.command.call", path, "main")
    assert name_program(command) == path
    assert name_called_function(command) == f"{path}:main"


@pytest.mark.parametrize(
    "code",
    [
        "def main(trial):\n    return trial.suggest_float('lr', 0.0, 1.0)",
        "def main(t, seed=0, *, depth=3):\n    return t.suggest_int('lr', 1, 8)",
        f"{PARSER}def main(trial):\n    trial.suggest_int('lr', 1, 8)\n{GUARD}study.optimize(main)",
        "import optuna\ndef main(trial):\n    return build(trial)",
    ],
)
def test_objective_of_optuna_gets_a_trial(code, tmp_path):
    (tmp_path / "train.py").write_text(f"raise SystemExit('imported')\n{code}")
    command = find_script_command("train.py:main", tmp_path, {"lr"})
    assert command == (sys.executable, "-m", "searchlight.search.command.objective", "train.py", "main")
    assert (name_program(command), name_called_function(command)) == ("train.py", "train.py:main")


def test_objective_of_more_than_a_trial_is_refused(tmp_path):
    (tmp_path / "train.py").write_text("def main(trial, data, seed):\n    trial.suggest_int('lr', 1, 8)")
    with pytest.raises(UsageError) as error:
        find_script_command("train.py:main", tmp_path, {"data"})
    problem = "train.py:main must get a value for its argument data, but gets none."
    assert str(error.value) == f"{problem} Give it a default, or name a function of the trial alone."


@pytest.mark.parametrize("name", ["main", "objective"])
def test_file_of_a_package_is_called_as_its_module(name, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    for file in ("__init__.py", "__main__.py", "net.py"):
        (package / file).write_text("size = 8")
    code = "from .net import size\ndef main(lr): ...\ndef objective(trial):\n    trial.suggest_int('lr', 1, size)"
    (package / "train.py").write_text(code)
    assert find_script_command(f"package/train.py:{name}", tmp_path, {"lr"})[-2:] == ("package.train", name)


@pytest.mark.parametrize(
    "code",
    [
        f"LR = 0.1\ndef main(**overrides): ...\n{GUARD}main()",
        f"{PARSER}def main(**given): ...\n{GUARD}main(**vars(parser.parse_args()))",
        f"import fire\ndef main(**given): ...\n{GUARD}fire.Fire(main)",
        "from absl import app, flags\nFLAGS = flags.FLAGS\ndef main(lr): ...\n"
        f"{GUARD}app.run(lambda _: main(FLAGS.lr))",
        "from transformers import HfArgumentParser as Parser\ndef main(given, lr): ...\n"
        f"{GUARD}main(*Parser(A).parse_args_into_dataclasses())",
        f"from utils import parse_args\ndef main(lr): ...\n{GUARD}main(parse_args().lr)",
    ],
)
def test_program_that_gives_its_options_to_a_function_is_run(code, tmp_path):
    (tmp_path / "train.py").write_text(code)
    assert find_script_command("train.py:main", tmp_path, {"lr"}) == (sys.executable, "train.py")


def test_objective_that_its_file_optimizes_at_each_import_is_refused(tmp_path):
    code = "import optuna\ndef main(trial): ...\nstudy = optuna.create_study()\nstudy.optimize(main, n_trials=9)"
    (tmp_path / "train.py").write_text(code)
    with pytest.raises(UsageError, match=r"but line 4 runs it: study\.optimize\(main, n_trials=9\)$"):
        find_script_command("train.py:main", tmp_path)


def test_function_of_the_parameters_that_lacks_some_is_refused(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("raise SystemExit('imported')\ndef main(lr, width, *, depth, seed): ...")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as error:
        load_config({"task": "train.py:main", "search": {"lr": "0.1..0.2"}, "objective": "loss"})
    assert error.value.problems == tuple(
        f"train.py:main must get a value for its argument {name}, but gets none. "
        "Give it by --search or --set, or give it a default."
        for name in ("width", "depth")
    )


def test_function_whose_argument_is_misspelt_is_refused(tmp_path):
    (tmp_path / "train.py").write_text("def main(lr, momentum=0.9): ...")
    with pytest.raises(UsageError, match=r"^train\.py:main must get a value for its argument lr, but gets none\."):
        find_script_command("train.py:main", tmp_path, {"lrr"})


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("print(main(0.1))", "line 3 runs it: print(main(0.1))"),
        ("best = minimize(fn=main, times=3)", "line 3 runs it: best = minimize(fn=main, times=3)"),
        ("best: float = main(0.1)", "line 3 runs it: best: float = main(0.1)"),
        ("best = minimize(partial(main, width=8))", "line 3 runs it: best = minimize(partial(main, width=8))"),
        ("def run():\n    study.optimize(main)\nrun()", "line 5 runs it: run()"),
        ("tuner = study.Tuner(main)\nbest = tuner.fit()", "line 4 runs it: best = tuner.fit()"),
        ("tuner: Tuner = study.Tuner(main)\ntuner = tuner.fit()", "line 4 runs it: tuner = tuner.fit()"),
        ("study.Tuner(study.wrap(main)).fit()", "line 3 runs it: study.Tuner(study.wrap(main)).fit()"),
        ("def make():\n    return Tuner(main)\nmake().fit()", "line 5 runs it: make().fit()"),
        ("if study:\n    tuner = Tuner(main)\ntuner.fit()", "line 5 runs it: tuner.fit()"),
        ("study.optimize(lambda trial: main(0.1))", "line 3 runs it: study.optimize(lambda trial: main(0.1))"),
        ("best = min(map(main, [0.1, 0.2]))", "line 3 runs it: best = min(map(main, [0.1, 0.2]))"),
        ("def run():\n    tuner = Tuner(main)\n    tuner.fit()\nrun()", "line 6 runs it: run()"),
    ],
)
def test_function_that_its_file_calls_at_each_import_is_refused(code, line, tmp_path):
    (tmp_path / "train.py").write_text(f"import study\ndef main(lr): ...\n{code}")
    with pytest.raises(UsageError) as error:
        find_script_command("train.py:main", tmp_path, {"lr"})
    rule = "train.py:main must run only below \"if __name__ == '__main__':\", since each trial imports its file"
    assert str(error.value) == f"{rule}, but {line}"


def test_function_of_a_config_that_its_file_tunes_at_each_import_is_refused(tmp_path):
    code = "from ray import tune\ndef main(config): ...\ntuner = tune.Tuner(main)\ntuner.fit()"
    (tmp_path / "train.py").write_text(code)
    with pytest.raises(UsageError, match=r"but line 4 runs it: tuner\.fit\(\)$"):
        find_script_command("train.py:main", tmp_path, {"lr"})


def test_variable_that_holds_a_function_must_not_be_tuned_at_each_import(tmp_path):
    code = "def train(config, data): ...\nmain = with_parameters(train, data=3)\ntuner = Tuner(main)\ntuner.fit()"
    (tmp_path / "train.py").write_text(code)
    with pytest.raises(UsageError, match=r"but line 4 runs it: tuner\.fit\(\)$"):
        find_script_command("train.py:main", tmp_path, {"lr"})
    (tmp_path / "train.py").write_text("class main: ...\nprint(main())")
    assert find_script_command("train.py:main", tmp_path, {"lr"}) is None


@pytest.mark.parametrize(
    "code",
    [
        "from ray import tune\ndef main(config): ...\nNAME = main.__name__\nsubprocess.run(['echo', NAME])",
        "from ray import tune\ndef main(config): ...\ntuner = tune.Tuner(main)",
        f"from ray import tune\ndef main(config): ...\ntuner = tune.Tuner(main)\n{GUARD}tuner.fit()",
        "def main(config): ...\nmodel.fit(data)",
        "def main(config): ...\nobjective = lambda trial: main({'lr': trial.suggest_float('lr', 0, 1)})",
        "def main(config): ...\nTASKS = {'a': main}\nprint(*map(str, TASKS))\nTASKS['b'] = model\nmodel.fit(data)",
        f"def main(config): ...\ntry:\n    {GUARD}    main({{}})\nexcept KeyboardInterrupt: ...",
        "def main(config): ...\ndef make(data):\n    def train(config): return main(data)\n    return train\nmake([1])",
        "def main(config): ...\ndef other():\n    def main(trial): ...\n    study.optimize(main)\nother()",
        "def main(config, lr=0.1): ...",
        "def main(cfg, lr=0.1): build(cfg)",
        "def main(lr, /): ...",
        "def main(trial): ...",
        "@unpack\ndef main(lr, width=8): ...",
        "def main(settings, seed=0): fit(settings)",
        "def main(settings, epochs=0, lr=0.1): fit(settings)",
        "def main(config_path): ...",
        "import ray\ndef main(hyper=None, epochs=10, lr=1): ...",
        "def main(hyper=None, epochs=10): ...",
        "def main(lr, width=8): ...\nmain = unpack(main)",
        "def main(lr):\n    return lr['lr'] + lr['width']",
        "def main(lr):\n    return lr.get('width')",
        "def main(lr):\n    return train(**lr)",
    ],
)
def test_function_of_a_config_may_name_it_like_a_parameter(code, tmp_path):
    (tmp_path / "train.py").write_text(code)
    assert find_script_command("train.py:main", tmp_path, {"config", "lr", "epochs", "seed"}) is None


@pytest.mark.parametrize("task", ["arc", "train.py", "package.module:main", "absent.py:main", "json:main", "sys:main"])
def test_other_tasks_are_no_programs(task, tmp_path):
    assert find_script_command(task, tmp_path) is None


def test_search_of_a_main_function_runs_its_script(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(SCRIPTS["argparse"])
    monkeypatch.chdir(tmp_path)
    assert load_config({"task": "train:main", "objective": "loss"}).command == (sys.executable, "-m", "train")
    with pytest.raises(UsageError, match=r"task must be in a module that can be imported .*, but there is no trian\."):
        load_config({"task": "trian:main", "objective": "loss"})
    config = load_config(
        {"task": "train.py:main", "search": {"lr": "0.1..0.2"}, "objective": "loss", "metric": "a=json"}
    )
    assert (config.command, config.task, config.folder) == ((sys.executable, "train.py"), "train.py", str(tmp_path))
    assert config.scheduler == "median"  # as of any command without a length
