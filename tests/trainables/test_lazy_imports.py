"""Import public names of a package on their first use."""

import subprocess
import sys

import pytest

from searchlight.trainables import task
from searchlight.trainables.task.task import Task


def test_name_of_the_package_is_that_of_its_module_and_stays():
    assert task.Task is Task
    assert vars(task)["Task"] is Task


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'searchlight\.trainables\.task' has no attribute 'Tsk'"):
        task.Tsk  # noqa: B018


@pytest.mark.parametrize("package", ["task", "checkpoint"])
def test_package_imports_torch_only_for_what_needs_it(package):
    code = f"import sys, searchlight.trainables.{package}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
