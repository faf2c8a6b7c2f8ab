"""The parameters of the best config as YAML, as arguments of a command, or as a Python dict."""

import pprint
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from searchlight.search.analysis.result import SearchResult
from searchlight.search.formatting import format_value
from searchlight.trainables.command.settings import Flag
from searchlight.trainables.command.template import list_flags
from searchlight.trainables.filesystem.atomic_file import write_atomic
from searchlight.trainables.filesystem.paths import StoragePath
from searchlight.trainables.flatten import flatten

FILE = "best.yaml"


def select_params(result: SearchResult) -> dict[str, Any]:
    """Return the searched values and those of `--set` in the best config, by dotted name. Empty without a best trial.

    Other values are the task's defaults. The config is the confirmed one, if the search has confirmed one.
    """
    if result.best is None:
        return {}
    about, values = result.searched.about, flatten(result.best.config)
    names = (*about.get("searched", ()), *about.get("config", {}).get("set", ()))
    return {name: values[name] for name in names if name in values}


def format_args(params: Mapping[str, Any], flags: Mapping[str, Flag] | None = None) -> str:
    """Return `params` as words of a command: --lr 0.001 --layers '[1, 2]', or by the flags of the searched command."""
    words: list[str] = []
    for name, value in params.items():
        flag = (flags or {}).get(name)
        words += list_flags({name: flag}, params) if flag else (f"--{name}", str(value))
    return shlex.join(words)


def read_flags(result: SearchResult) -> dict[str, Flag]:
    """Return how the command of a search takes its parameters, by name. Empty for a task."""
    stored = result.searched.about.get("flags", {})
    return {name: Flag(tuple(each["on"]), tuple(each["off"]), each["is_hydra"]) for name, each in dict(stored).items()}


def format_yaml(params: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(params), sort_keys=False)


def format_python(params: Mapping[str, Any]) -> str:
    return pprint.pformat(dict(params), sort_dicts=False)


FORMATS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "yaml": format_yaml,
    "args": format_args,
    "python": format_python,
}


def write_best_params(result: SearchResult, folder: StoragePath) -> bool:
    """Write best.yaml into `folder`, with a comment that says what it is. Return whether there is a best trial.

    Without one, remove the file of an earlier driver.

    Raises:
        OSError: The file cannot be written. The previous file stays.
    """
    path = folder / FILE
    if result.best is None:
        path.unlink(missing_ok=True)
        return False
    value = f"{result.searched.objective.metric} {format_value(result.best.value)} in the search"
    lines = [f"trial {result.best.trial_id} of {result.name}, {value}", *filter(None, [result.statement])]
    write_atomic(path, "".join(f"# {line}\n" for line in lines) + format_yaml(select_params(result)))
    return True
