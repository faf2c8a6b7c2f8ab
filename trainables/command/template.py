"""Fills a command and its files with the parameters of a trial."""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from searchlight.trainables.command.call import OBJECTIVES
from searchlight.trainables.command.file_values import read_source, replace_values
from searchlight.trainables.command.settings import CommandSettings, Flag

PLACES = ("seed", "trial", "trial_dir", "checkpoint_dir", "epochs", "nproc", "port")
# Braces around anything else belong to the program: JSON, a shell's {1..3} and ${HOME}, a regular expression's {3}.
_NAME = r"[A-Za-z_][\w./-]*"
_PLACEHOLDER = re.compile(rf"\{{\{{(?P<literal>{_NAME})\}}\}}|(?<!\$)\{{(?P<name>{_NAME})\}}")
# What Hydra reads as a text without quotes. It reads the others here as a number, a boolean or null.
_HYDRA_WORD = re.compile(r"(?!(?:[-+]?[\d_.]+(?:e[-+]?\d+)?|true|false|null)\Z)[\w./+:%@|?*-]+", re.IGNORECASE)
# Variables by which a program takes itself for one process of several: of Ray Train, torchrun, SLURM and MPI.
_RANKS = re.compile(
    r"(LOCAL_|GROUP_|ROLE_|NODE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|(TORCHELASTIC|OMPI_COMM|PMI)_\w+"
    r"|SLURM_(PROCID|LOCALID|NODEID|NTASKS|NPROCS|STEP_\w+)"
)


@dataclass(frozen=True)
class Launch:
    """What starts the program of one trial.

    Attributes:
        argv: The words of the command.
        environment: All variables of the program.
        files: Texts by path, relative to the trial's folder. They take the place of links to the user's files.
    """

    argv: list[str]
    environment: dict[str, str]
    files: dict[str, str]


def fill(
    settings: CommandSettings,
    values: Mapping[str, Any],
    places: Mapping[str, str],
    environment: Mapping[str, str] | None = None,
    is_restart: bool = False,
) -> Launch:
    """Return what starts the program with `values`, the parameters of a trial by their dotted names.

    Args:
        places: Values of the other placeholders by name, some or all of PLACES.
        environment: The variables of the program without Searchlight's own. Default: those of this process.
        is_restart: Whether the program has been started before for this trial, and so takes `resume_with`.

    Raises:
        ValueError: A placeholder has no value, or a file has not the place of a parameter.
        OSError: A file cannot be read.
    """
    texts = {name: format_value(value) for name, value in values.items()} | dict(places)
    texts |= {target.path: str(Path(places["trial_dir"]) / target.path) for target in settings.files}
    words = [*settings.words, *(settings.resume_with if is_restart else ())]
    argv = [fill_text(word, texts) for word in words] + list_flags(settings.flags, values)
    own = {f"SEARCHLIGHT_{name.upper()}": places[name] for name in PLACES if name in places}
    if settings.copies_code:
        own["SEARCHLIGHT_FOLDER"] = settings.folder
    outer = {
        name: text
        for name, text in (os.environ if environment is None else environment).items()
        if not _RANKS.fullmatch(name)
    }
    own["SEARCHLIGHT_PARAMS"] = json.dumps(dict(values))
    if settings.objectives:
        own[OBJECTIVES] = json.dumps(settings.objectives)
    return Launch(argv, {**outer, **own}, fill_files(settings, values))


def find_placeholders(words: Iterable[str]) -> list[str]:
    """Return the names of the placeholders in the words of a command.

    >>> find_placeholders(["--lr={lr}", '{"depth": {model.depth}}', "${HOME}", "{{lr}}"])
    ['lr', 'model.depth']
    """
    return [match["name"] for word in words for match in _PLACEHOLDER.finditer(word) if match["name"]]


def fill_text(text: str, texts: Mapping[str, str]) -> str:
    """Return `text` with the values of its placeholders. Double braces around a name become single ones.

    A placeholder may have "-" where the name of a parameter has "_".

    Raises:
        ValueError: A placeholder has no value.

    >>> fill_text("--out={trial_dir}/{{lr}} {learning-rate}", {"trial_dir": "/runs/3", "learning_rate": "0.1"})
    '--out=/runs/3/{lr} 0.1'
    """

    def replace(match: re.Match[str]) -> str:
        if match["literal"]:
            return f"{{{match['literal']}}}"
        for name in (match["name"], match["name"].replace("-", "_")):
            if name in texts:
                return texts[name]
        raise ValueError(f"{match[0]} in the command must have a value, but there is none for this trial")

    return _PLACEHOLDER.sub(replace, text)


def list_flags(flags: Mapping[str, Flag], values: Mapping[str, Any]) -> list[str]:
    """Return the words that give `values` to a program by flags. A parameter that the trial has not gets none."""
    groups: dict[str, list[str]] = {}  # by the option that is shared, or else by parameter
    for name, flag in flags.items():
        if name in values:
            words = groups.setdefault(flag.shared or name, [flag.shared] if flag.shared else [])
            value = values[name]
            is_off = value is False and not any("{value}" in word for word in flag.on)
            text = format_override(value) if flag.is_hydra else format_value(value)
            items = (parse_list(value) or [value]) if flag.is_list else []
            for word in flag.off if is_off else flag.on:
                is_split = items and word == "{value}"
                words += map(format_value, items) if is_split else [word.replace("{value}", text)]
    return [word for words in groups.values() for word in words]


def parse_list(value: Any) -> list[Any] | None:
    """Return a list, or the list that a text like [64, 64] is in YAML, or None for any other value."""
    if isinstance(value, str) and re.fullmatch(r"\[.*\]", value):
        with contextlib.suppress(yaml.YAMLError):
            value = yaml.safe_load(value)
    return value if isinstance(value, list) else None


def format_value(value: Any) -> str:
    """Return a value as a word of a command. Booleans are True and False, as Python parses them, and None is null.

    >>> [format_value(value) for value in (1e-05, True, None, "bf16")]
    ['1e-05', 'True', 'null', 'bf16']
    """
    return "null" if value is None else str(value)


def format_override(value: Any) -> str:
    r"""Return a value as Hydra reads it in an override. A text with special characters is in quotes.

    >>> print(format_override(["a,b", "it's", 0.1, None, "c\\"]))
    ['a,b','it\'s',0.1,null,'c\\']
    """
    if (items := parse_list(value)) is not None:
        return f"[{','.join(map(format_override, items))}]"
    if not isinstance(value, str) or _HYDRA_WORD.fullmatch(value):
        return format_value(value)
    escaped = re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), value)
    return f"'{escaped}'"


def fill_files(settings: CommandSettings, values: Mapping[str, Any]) -> dict[str, str]:
    """Return the files that take parameters, with their values, by path relative to the user's folder.

    Python looks for the modules of a script beside the file that a link leads to. So if files differ from the
    user's, scripts that the command names are files of the trial too, and find those.
    """
    targets = [target for target in (*settings.files, *settings.patches) if target.parameter in values]
    places: dict[str, dict[str, Any]] = {}
    for target in targets:
        places.setdefault(target.path, {})[target.key] = values[target.parameter]
    folder = Path(settings.folder)
    scripts = [word for word in settings.words if word.endswith(".py") and not Path(word).is_absolute()]
    texts = {word: read_source(folder / word) for word in scripts if places and (folder / word).is_file()}
    return texts | {path: replace_values(path, read_source(folder / path), keys) for path, keys in places.items()}
