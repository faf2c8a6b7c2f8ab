"""Commands, options, paths, targets and imports that the pages name exist. Nothing is started."""

import ast
import importlib
import importlib.util
import re
import shlex
import shutil
import sys
from itertools import chain
from pathlib import Path

import click
import pytest

from searchlight.search import cli, mcp, report, run, steer, ui
from searchlight.search.config.search_config import OPTIONS
from searchlight.search.experiment import runner
from searchlight.search.experiment.plan import build_space
from searchlight.search.experiment.task_files import resolve_task
from tests.conftest import ROOT
from tests.test_readme import PAGES, README

SCRIPTS = {"search/run.py": run.main, "search/report.py": report.main}
COMMANDS = "run|resume|list|report|best"
TYPED = re.compile(rf"(?:.*\s)?(search/(?:run|report)\.py|searchlight(?= (?:{COMMANDS}) )) (?!\.\.\.)(.+)")
TOP = "searchlight|search|trainables|models|tests|benchmarks|docs|deploy|examples"
OF_OTHER_PROGRAMS = {"--init_from", "--lr", "--num-cpus", "--requirement", "--working-dir", "--head", "--logdir"}
OF_OTHER_PROGRAMS |= {"--signal", "--batch", "--job-name"}  # of Slurm
# Of users' programs:
OF_OTHER_PROGRAMS |= {"--cfg-options", "--layers", "--nproc_per_node", "--num_train_epochs", "--shuffle"}


def blocks_of(page):
    """Return the code blocks of a page, or the docstring of an example."""
    text = page.read_text(encoding="utf-8")
    is_page = page.suffix == ".md"
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL) if is_page else [ast.get_docstring(ast.parse(text))]
    return [re.sub(r"\\\n\s*", "", block) for block in blocks]


def prose_of(page):
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def spans_of(page):
    return re.findall(r"`([^`]+)`", prose_of(page))


def find_commands():
    for page in (*PAGES, *sorted((ROOT / "examples").glob("*.py"))):
        lines = chain(*map(str.splitlines, blocks_of(page)), spans_of(page) if page.suffix == ".md" else ())
        yield from (found.groups() for line in lines if (found := TYPED.fullmatch(line.strip())))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a user who has copied the tasks of the pages."""
    folder = tmp_path_factory.mktemp("user")
    (task,) = re.findall(r"```python\n(# my_task\.py\n.*?)```", README, flags=re.DOTALL)
    functions = re.findall(
        r"```python\n(# train\.py\n.*?)```", (ROOT / "docs" / "bring-your-code.md").read_text(), flags=re.DOTALL
    )
    functions.append("def evaluate_pipeline(lr, optimizer): ...")  # of a user of NePS
    functions.append("def objective(trial):\n    return trial.suggest_int('width', 1, 8)")  # of Optuna
    (folder / "mine").mkdir()
    for name in ("my_task.py", "mine/my_task.py"):
        (folder / name).write_text(task)
    (folder / "FILE.py").write_text(task.replace("MyTask", "ClassName"))
    (folder / "train.py").write_text("\n".join(functions))
    (folder / "search.yaml").write_text("task: my_task.py:MyTask\n")
    (folder / "text.txt").write_text("a text " * 1000)
    (folder / "examples").symlink_to(ROOT / "examples")
    yield folder
    for name in ("my_task", "FILE", "train"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("script", "text"), sorted({*find_commands()}))
def test_command_of_a_page_fits_the_program(script, text, folder, monkeypatch):
    def check(config, *_, **__):
        path, _, name = config.task.rpartition(":")
        if "/examples/" in path:  # their imports take long
            assert re.search(rf"^(class|def) {name}\b", Path(path).read_text(), flags=re.MULTILINE)
        else:
            sys.modules.pop("my_task", None)  # of another folder
            build_space(*resolve_task(config))
        raise click.exceptions.Exit(0)

    def check_resumed(name, storage, given, **_):
        check(run.load_config({"task": "arc", **given}))

    shutil.rmtree(folder / "runs", ignore_errors=True)  # a search at several sizes has written its options there
    monkeypatch.chdir(folder)
    monkeypatch.setattr(runner, "run", check)
    monkeypatch.setattr(runner, "plan", check)
    monkeypatch.setattr(runner, "resume", check_resumed)
    monkeypatch.setattr(run, "list_sized_searches", lambda _: [])  # the buckets of the pages do not exist
    for module in (run, cli):
        monkeypatch.setattr(module, "print_searches", lambda *_: None)
    for command in (report.main, cli.print_best):
        monkeypatch.setattr(command, "callback", lambda **_: None)
    words = shlex.split(text.replace("/path/to/folder", str(folder)), comments=True)
    with pytest.raises(SystemExit) as ended:
        SCRIPTS.get(script, cli.searchlight).main(words, prog_name=script)
    assert ended.value.code == 0


def test_every_option_that_a_page_names_exists():
    commands = (*SCRIPTS.values(), *cli.searchlight.commands.values(), *steer.COMMANDS, ui.main, mcp.main)
    known = {name for command in commands for parameter in command.params for name in parameter.opts}
    benchmarks = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "benchmarks").rglob("*.py"))
    known |= OF_OTHER_PROGRAMS | {"--help"} | {*re.findall(r"\"(--[a-z-]+)\"", benchmarks)}
    named = {page.name: {*re.findall(r"(?<![\w-])--[a-z][\w-]*", prose_of(page))} for page in PAGES}
    assert not {page: names - known for page, names in named.items() if names - known}


def test_every_path_module_and_target_that_a_page_names_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {".venv/ready", *re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE)}
    wrong = []
    for page in PAGES:
        code = [*spans_of(page), *chain(*map(str.splitlines, blocks_of(page)))]
        paths = {path for text in code for path in re.findall(rf"(?<![\w./-])(?:{TOP})/[\w./*-]*\w", text)}
        paths |= {*re.findall(rf"(?<![\w./(-])(?:{TOP})/[\w./-]*\w", prose_of(page))}
        wrong += [f"{page.name}: {path}" for path in paths if not [*ROOT.glob(path)]]
        modules = {name for text in code for name in re.findall(rf"-m ((?:{TOP})[\w.]*)", text)}
        wrong += [f"{page.name}: {name}" for name in modules if importlib.util.find_spec(name) is None]
        made = {name for text in code for name in re.findall(r"(?:^|&& )make ([\w./-]+)", text)}
        wrong += [f"{page.name}: make {name}" for name in made - targets]
    assert wrong == []


def test_every_import_and_key_that_a_page_shows_exists():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and re.match(rf"(?:{TOP})\b", node.module):
                    module = importlib.import_module(node.module)
                    assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
        for block in re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL):
            assert {*re.findall(r"^(\w+):", block, flags=re.MULTILINE)} <= {option.key for option in OPTIONS}
