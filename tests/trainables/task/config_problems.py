"""Collect what the command line says of a wrong config of a task."""

import pytest

from searchlight.search.errors import UsageError
from searchlight.search.space.search_space import resolve_space
from searchlight.trainables.task import TaskConfig


def problems(config: type[TaskConfig], fixed: dict[str, str], searched: dict[str, str] | None = None) -> list[str]:
    """Return the lines of what is wrong with `--set` and `--search`."""
    with pytest.raises(UsageError) as caught:
        resolve_space(config, fixed, searched or {})
    return [problem.removeprefix("--set ") for problem in caught.value.problems]


def assert_one_line(config: type[TaskConfig], fixed: dict[str, str], told: str) -> None:
    """Assert that there is one mistake, told in one line that begins with `told`."""
    (line,) = problems(config, fixed)
    assert line.startswith(told)
    assert line.endswith((".", "?"))
    assert "\n" not in line
