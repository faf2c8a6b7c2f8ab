"""The errors of a search, and their messages of one line each."""

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError


class UsageError(ValueError):
    """An invalid request of the user. The message has one line per problem."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems

    def __reduce__(self) -> tuple[Any, ...]:
        return UsageError, self.problems


class StoreError(RuntimeError):
    """The storage of a running search is lost. Neither the user nor this program made a mistake."""


def suggest_nearest(name: str, valid: Iterable[str]) -> str:
    """Return "Did you mean ...?" with the closest valid name, or the list of all valid names."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Choose from {', '.join(names)}."


def format_validation_errors(error: ValidationError, where: str = "") -> list[str]:
    """Return the problems that pydantic found, as `<where><field> must <rule>, but got <value>.`"""
    problems = []
    for problem in error.errors():
        field = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ").removeprefix("Input should ").rstrip(".")
        message = message.removeprefix("be ").split(", unable to parse")[0]
        if problem["type"] == "value_error":
            # Our own validators return the whole rule, "must ..., but got ...".
            problems.append(f"{where}{field} {message}." if message.startswith("must ") else f"{where}{message}.")
        elif problem["type"] == "missing":
            problems.append(f"{where}{field} must be given.")
        else:
            problems.append(f"{where}{field} must be {message}, but got {problem['input']!r}.")
    return problems
