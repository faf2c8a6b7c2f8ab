"""The parameters of the best config as YAML, as arguments of a command, or as a Python dict."""

import pprint
import shlex
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import yaml

from searchlight.search.analysis.result import SearchResult
from searchlight.search.command.flags import EPOCHS
from searchlight.search.command.functions import name_called_function
from searchlight.search.errors import UsageError
from searchlight.search.formatting import format_value, join_words
from searchlight.trainables.command import template
from searchlight.trainables.command.settings import Flag
from searchlight.trainables.command.template import fill_text, find_placeholders, list_flags
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
    chosen = {name: values[name] for name in names if name in values}
    if added := result.searched.count_added_epochs(result.best.trial_id):
        chosen["epochs"] = values["epochs"] + added
    return chosen


def format_args(params: Mapping[str, Any]) -> str:
    """Return `params` as words of a command: --lr 0.001 --layers '[1, 2]' --clip null."""
    pairs = ((f"--{name}", template.format_value(value)) for name, value in params.items())
    return shlex.join(word for pair in pairs for word in pair)


def format_command_args(params: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """Return `params` as the words with which a searched command takes them. A task has none of its own.

    Args:
        about: The metadata of the search.

    Raises:
        UsageError: The command does not take one of them as an argument.
    """
    command = about.get("config", {}).get("command")
    if not command:
        return format_args(params)
    if function := name_called_function(command):
        raise UsageError(f"--format must be yaml or python, because {function} has no command line.")
    flags = {
        name: Flag(**{**each, "on": tuple(each["on"]), "off": tuple(each["off"])})
        for name, each in about.get("flags", {}).items()
    }
    places = {name.replace("-", "_") for name in find_placeholders(command)}
    # A program may get its number of reports in another way, e.g. as a constant.
    missing = [name for name in params if name not in {*flags, EPOCHS} and name.replace("-", "_") not in places]
    if missing:
        raise UsageError(
            f"--format must be yaml or python, because the command takes no argument for {join_words(missing)}."
        )
    texts = {name.replace("-", "_"): template.format_value(value) for name, value in params.items()}
    words: list[str] = []
    for before, word in pairwise(("", *command)):
        names = [name.replace("-", "_") for name in find_placeholders([word])]
        if names and all(name in texts for name in names):
            words += [before] if before.startswith("-") and "=" not in before and not word.startswith("-") else []
            words.append(fill_text(word, texts))
    return shlex.join([*words, *list_flags(flags, params)])


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
