"""Builds the config of a search from options and a YAML file, and writes it as YAML."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from searchlight.search.command.options import CommandOptions, name_program
from searchlight.search.command.script import find_script_command
from searchlight.search.command.suggestions import add_suggestions
from searchlight.search.config.search_config import OPTIONS, SearchConfig, describe_unknown_keys
from searchlight.search.errors import UsageError
from searchlight.search.folder import locations
from searchlight.search.folder.locations import local_path_of
from searchlight.search.option import (
    REPLACED,
    find_retired_keys,
    option_name,
    read_yaml,
    translate_retired_keys,
    wrap_in_list,
)
from searchlight.search.samplers.options import list_ignored
from searchlight.search.samplers.own import resolve_reference
from searchlight.search.schedulers.pbt import default_population
from searchlight.search.storage.study_store import resolve_url
from searchlight.search.task_source import find_copy, locate_file, locate_folder, locate_module, strip_sent_folder
from searchlight.trainables.filesystem.paths import StoragePath

ALL_CHECKPOINTS = 10**9
LARGEST_FILE = 2**20


def load_config(given: dict[str, Any], file: Path | None = None) -> SearchConfig:
    """Return the config of the options in `given` and of a YAML file. Options override the file.

    Raises:
        UsageError: Options are wrong. The message has a line for each problem.
    """
    from_file = _read_yaml(file)
    if gone := find_retired_keys(from_file):
        raise UsageError(*(f"{file}: {key} is gone. Use {REPLACED[option_name(key)]}." for key in gone))
    values = translate_retired_keys({**from_file, **given})
    for key in ("set", "search", "resources", "trust", "believe"):
        # An option changes one parameter and keeps the others of the file.
        of_file = from_file.get(key) or {}
        if not isinstance(of_file, dict):
            raise UsageError(f"{file}: {key} must hold parameters by name, but got {of_file!r}.")
        values[key] = {**of_file, **given.get(key, {})}
    for key in ("try", "warm_start"):  # an option adds to the file
        values[key] = [*wrap_in_list(from_file.get(key) or []), *given.get(key, [])]
    if unknown := [*describe_unknown_keys(values)]:
        raise UsageError(*(f"{file}: {problem}" for problem in unknown))
    return resolve_config(SearchConfig(**values))


def resolve_config(config: SearchConfig) -> SearchConfig:
    """Return `config` with absolute paths and with the defaults that depend on other options.

    Raises:
        UsageError: Options contradict each other. The message has a line for each contradiction.
    """
    if not config.command and isinstance(config.task, str):  # e.g. train.py:main, which takes no config
        command = find_script_command(config.task, Path.cwd(), {*config.search, *config.set, *config.sizes})
        if command:
            searched = add_suggestions(command, Path.cwd(), config.search, config.set)
            update = {"command": command, "task": name_program(command), "search": searched}
            config = config.model_copy(update=update)
    if (config.command or config.sizes) and "scheduler" not in config.model_fields_set:
        # The law over sizes needs final values, so that no trial may end early.
        config = config.model_copy(update={"scheduler": "none" if config.sizes else config.choose_scheduler()})
    if config.once:
        config = config.model_copy(update={"scheduler": "none"})
    problems = [*config.find_problems()]
    study = ""
    if config.study:
        try:
            study = resolve_url(config.study)
        except UsageError as error:
            problems += error.problems
    if problems:
        raise UsageError(*problems)
    task = locate_module(config.task) if isinstance(config.task, str) else config.task
    path, _, label = task.rpartition(":") if isinstance(task, str) else ("", "", task.__name__)
    task = strip_sent_folder(f"{locate_file(Path(path))}:{label}") if path.endswith(".py") else task
    population = config.population
    if config.scheduler_class.makes_copies and "trials" in config.model_fields_set:  # else a task may declare it
        population = population or default_population(config.trials)
    return config.model_copy(
        update={
            "task": task,
            **({"folder": strip_sent_folder(str(locate_folder(Path(config.folder))))} if config.command else {}),
            "name": config.name or f"{Path(label).stem.lower().strip('_')}-{time.strftime('%Y%m%d-%H%M%S')}",
            "sampler": resolve_reference(config.sampler),
            "storage": config.storage.expanduser().absolute(),
            "study": study,
            "warm_start": [locations.parse_warm_start_source(source, config.storage) for source in config.warm_start],
            "experiment": config.experiment or label,
            **({"trials": 1} if config.once else {}),  # otherwise a task may declare the number
            # Here, so that a search that is resumed with more trials keeps its population.
            "population": population,
        }
    )


def build_resume_config(metadata: Mapping[str, Any], location: StoragePath, given: Mapping[str, Any]) -> SearchConfig:
    """Return the stored config with the overrides in `given` and the present location of the search."""
    resumable = {option.key for option in OPTIONS if option.resumable}
    if fixed := sorted(given.keys() - resumable):
        named = ", ".join("a task" if name == "task" else option_name(name) for name in fixed)
        raise UsageError(
            f"--resume must come without {named}: {location.name} continues as it began. "
            f"Options that may change: {', '.join(map(option_name, sorted(resumable)))}."
        )
    # Older searches without these options kept all checkpoints and confirmed nothing.
    before = {
        "keep_checkpoints": ALL_CHECKPOINTS,
        "confirm": 0,
        **metadata["config"],
        "storage": location.parent,
        "name": location.name,
        "quiet": False,
    }
    for key in list_ignored({**before, **given}.get("sampler", "")):
        before[key] = {}
    before["task"] = locate_task(before["task"], location)
    return load_config({**{key: value for key, value in before.items() if value is not None}, **given})


def locate_task(task: str, location: StoragePath) -> str:
    """Return `task` with the present path of its file, or of the copy that `location` keeps if there is none any more.

    Raises:
        UsageError: Both are missing.
    """
    before, _, name = task.rpartition(":")
    if not before.endswith(".py"):
        return task
    path, code = Path(before), local_path_of(location) / "code"
    file = locate_file(path)
    found = file if file.is_file() else find_copy(code, path)
    if found is None:
        sent = strip_sent_folder(str(path))
        remedy = "Put it back" if Path(sent).is_absolute() else f"Resume in the folder that has {sent}"
        raise UsageError(
            f"task must be a file that exists, but there is no {file}, and no copy of it in {code}. {remedy}."
        )
    return f"{found}:{name}"


def to_yaml(config: SearchConfig) -> str:
    """Return `config` as YAML, which starts the same search under a new name."""
    left_out = {"name", *({} if config.command else CommandOptions.model_fields)}
    values = config.model_dump(mode="json", exclude=left_out, by_alias=True)
    keys = [option.key for option in OPTIONS if values.get(option.key) not in (None, "", [])]
    return yaml.safe_dump({key: values[key] for key in keys}, sort_keys=False)


def _read_yaml(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(LARGEST_FILE + 1)
        values = read_yaml(text)
        size = _count_items(values, {}) if len(text) <= LARGEST_FILE else math.inf
    except RecursionError:
        raise UsageError(f"--config must be a YAML file of options, but {file} is nested too deep.") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--config must be a YAML file, but {file} is not: {' '.join(str(error).split())}") from error
    if size > LARGEST_FILE:
        raise UsageError(f"--config must hold at most {LARGEST_FILE} characters or items, but {file} holds more.")
    if not isinstance(values, dict):
        raise UsageError(f"--config must hold options by name, but {file} holds {type(values).__name__}.")
    return {str(key): value for key, value in values.items()}


def _count_items(value: Any, known: dict[int, int]) -> int:
    """Return the number of items in `value`. Repeated aliases count each time: nine lines may hold a billion items."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        items = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count_items(item, known) for item in items)
    return known[id(value)]
