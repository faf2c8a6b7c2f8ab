import sys

import pytest

from searchlight.search.command.code import find_code
from searchlight.search.command.script import find_script_command
from searchlight.search.config import load_config
from searchlight.search.experiment.plan import plan
from searchlight.search.experiment.task_files import copy_code
from searchlight.search.tracking.provenance import compute_digests

FILES = {
    "train.py": "import logging, net.layers, search",
    "net/layers.py": "from net import deep",
    "net/deep.py": "raise SystemExit('imported')",
    "net/data.bin": "0",
    "search.py": "x = 1",
    "other.py": "x = 1",
    "config/small.py": "lr = 0.1",
    "package/__init__.py": "",
    "package/train.py": "from . import model\nimport other\ndef main():\n    import argparse\n",
    "package/model.py": "x = 1",
    "package/__main__.py": "from . import train",
}
OF_SCRIPT = {"train.py", "net/layers.py", "net/deep.py", "search.py"}
OF_MODULE = {"package/train.py", "package/model.py", "package/__main__.py", "other.py"}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("python -u train.py config/small.py --lr {lr}", OF_SCRIPT),
        ("torchrun --standalone --nproc_per_node={nproc} train.py", OF_SCRIPT),
        ("accelerate launch --num_processes 1 train.py", OF_SCRIPT),
        ("python -m package.train", OF_MODULE),
        ("python -m package", OF_MODULE),
        ("torchrun -m package.train", OF_MODULE),
        ("python -m torch.distributed.run -m package.train", OF_MODULE),
        ("python -m json.tool", set()),
        ("python absent.py", set()),
        ("./build/train --config config.yaml", set()),
    ],
)
def test_code_is_the_program_and_what_it_imports(command, files, folder):
    found = find_code(command.split(), folder)
    assert found.keys() == files
    assert found == {name: folder / name for name in files}


def test_function_of_a_module_has_its_code(folder):
    assert find_code(find_script_command("package.train:main", folder), folder).keys() == OF_MODULE


def test_code_of_a_script_elsewhere_has_names_beside_it(folder, tmp_path_factory):
    assert find_code(["python", str(folder / "train.py")], tmp_path_factory.mktemp("here")).keys() == OF_SCRIPT


def test_search_keeps_a_copy_of_the_code(folder, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(folder)
    given = {"command": [sys.executable, "train.py"], "search": {"lr": "0..1"}, "flags": "none"}
    source = plan(load_config({**given, "objective": "loss:min"})).source
    target = tmp_path_factory.mktemp("search")
    copy_code(source, target)
    copies = {path.relative_to(target / "code").as_posix() for path in (target / "code").rglob("*") if path.is_file()}
    assert copies == OF_SCRIPT
    copy_code(source, target)
    assert [path.name for path in target.iterdir()] == ["code"], "it is up to date"
    assert compute_digests(source.modules).keys() == OF_SCRIPT
