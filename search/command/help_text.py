"""Reads the options of a program from the text that its --help prints.

Known are the texts of argparse, click, typer, tyro, HfArgumentParser, jsonargparse with LightningCLI, absl, fire and
Hydra. Other programs have similar ones.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from searchlight.trainables.command.template import format_value
from searchlight.trainables.flatten import flatten

_FRAME = str.maketrans("│┃╭╰╮╯─", "       ")  # of typer, tyro and rich
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_NAME = re.compile(r"-{1,2}(\[no-?\])?[A-Za-z?][\w.+-]*")
_NEXT_NAME = re.compile(r"(, ?| ?/ ?| +)(?=-{1,2}[A-Za-z\[])")
_METAVAR = re.compile(r"(?P<sign>\[?=| )(?P<metavar>(?! )(?:(?! {2}|, ?-| / ?-|/-).)+)")
_COLUMN = re.compile(
    r" +(<[^>]+>|\[[^\] ]+\|[^\]]*\]|(?:TEXT|INTEGER|FLOAT|PATH|FILE(?:NAME)?|DIRECTORY)(?: RANGE)?)(?= |$)"
)
_TYPES = {"int": "int", "integer": "int", "float": "float", "number": "float", "bool": "bool", "boolean": "bool"}
# As "(default: 0.1)", "(type: int, default: 2)" and "[default: 0.1; x>=0]", and of fire "Type: int Default: 2".
_DEFAULT = re.compile(
    r"[(\[](?:[^()]*[,;] )?default[:=] ?(?P<shown>[^()\[\],;]*)(?:[,;][^()]*)?[)\]]"
    r"|^\s*(?:Type: \S+ )?Default: (?P<begins>'[^']*'|\S+)",
    re.IGNORECASE,
)
MAX_INDENT = 8  # of the names of an option; descriptions stand further right


@dataclass(frozen=True)
class ProgramOption:
    """An option of a program, or a key of its Hydra config.

    Attributes:
        names: As the program takes them, e.g. ("-b", "--batch-size"), or ("model.depth",) for Hydra.
        metavar: What stands for the value, or "" for a switch.
        sign: What stands between name and value: " " or "=".
        type: int, float or bool, or "" if the text does not say it.
        choices: The values that the program takes, or () if the text does not say them.
        is_hydra: Whether it is a key or a group of a Hydra config.
        default: The value that it has without the option, as text, or None if the text does not say it.
        is_list: Whether it takes one word or more.
    """

    names: tuple[str, ...]
    metavar: str = ""
    sign: str = " "
    type: str = ""
    choices: tuple[str, ...] = ()
    default: str | None = None
    is_hydra: bool = False
    is_list: bool = False

    @property
    def count(self) -> int:
        """The number of values that the option takes at once."""
        words = self.metavar.strip("<>.").split()
        return len(words) if len(set(words)) == 1 else min(1, len(words))


def parse_help(text: str) -> list[ProgramOption]:
    """Return the options that a text of --help shows, without --help itself."""
    text = _STYLE.sub("", text).translate(_FRAME)
    if re.search(r"powered by hydra", text, re.IGNORECASE):
        return [*_parse_hydra(text)]
    return [*_parse_options(_drop_usage(text))]


def _parse_options(lines: list[str]) -> Iterator[ProgramOption]:
    starts = [number for number, line in enumerate(lines) if re.match(rf" {{0,{MAX_INDENT}}}-{{1,2}}[A-Za-z\[?]", line)]
    for start, end in zip(starts, [*starts, len(lines)][1:], strict=True):
        indent = len(lines[start]) - len(lines[start].lstrip())
        later = [line for line in lines[start + 1 : end] if not line.strip() or len(line) - len(line.lstrip()) > indent]
        option = _parse_option(lines[start].strip(), " ".join(line.strip() for line in later))
        if option is not None and not {"--help", "-h"} & {*option.names}:
            yield option


def _parse_option(line: str, more: str) -> ProgramOption | None:
    """Return the option that `line` begins with. `more` is the rest of its description."""
    names: list[str] = []
    metavar, sign, position = "", " ", 0
    while name := _NAME.match(line, position):
        negated, plain = name[1], name[0].replace(name[1] or "", "")
        names += [plain, f"--no{plain[2:]}"] if negated else [plain]
        position = name.end()
        if found := _METAVAR.match(line, position) if not _NEXT_NAME.match(line, position) else None:
            metavar, sign, position = found["metavar"].strip(), found["sign"], found.end()
        if following := _NEXT_NAME.match(line, position):
            position = following.end()
    if not names:
        return None
    if not metavar and (column := _COLUMN.match(line, position)):  # typer
        metavar, position = column[1], column.end()
    description = f"{line[position:].strip()} {more}"
    if not metavar and line[position : position + 1] == ":" and len(names) == 1:  # absl
        told = re.match(r": (<[^>]+>):", line[position:])
        metavar, sign = told[1] if told else "VALUE", "="
    if metavar.lower() == "<bool>":  # typer's switches
        metavar = ""
    is_list = bool(re.match(r"\[[^\]]*\.\.\.\]$|\S+ \[.*\.\.\.\]$", metavar))
    if is_list:
        metavar = metavar.removeprefix("[").split(" ")[0]
    kind = _find_type(metavar, description)
    sign = "=" if "=" in sign else " "
    choices, default = _find_choices(metavar), _find_default(description)
    return ProgramOption(tuple(names), metavar, sign, kind, choices, default, is_list=is_list)


def _find_type(metavar: str, description: str) -> str:
    told = re.search(r"\(type: (?:Optional\[)?(\w+)\]?(?:,|\))|\((?:an? )?(integer|number)\)", description)
    name = (told[1] or told[2]) if told else metavar.removeprefix("{None}|").strip("<>[]").removesuffix(" RANGE")
    return _TYPES.get(name.lower(), "")


def _find_default(description: str) -> str | None:
    found = [match["shown"] or match["begins"] or "" for match in _DEFAULT.finditer(description)]
    return found[-1].strip().strip("'\"") if found else None


def _find_choices(metavar: str) -> tuple[str, ...]:
    for pattern, separator in ((r"\{(.*)\}", ","), (r"[\[<](.*\|.*)[\]>]", "|")):
        if match := re.fullmatch(pattern, metavar):
            return tuple(choice.strip() for choice in match[1].split(separator))
    return ()


def _drop_usage(text: str) -> list[str]:
    """Return the lines without the paragraph of argparse that begins with "usage:", which repeats the options."""
    lines, is_usage = [], False
    for line in text.splitlines():
        is_usage = bool(line.strip()) and (is_usage or line.startswith("usage:"))
        lines += [] if is_usage else [line]
    return lines


def _parse_hydra(text: str) -> Iterator[ProgramOption]:
    groups, _, config = text.partition("== Config ==")
    for name, choices in re.findall(
        r"^([\w/@.]+): (.+)$", groups.partition("== Configuration groups ==")[2], re.MULTILINE
    ):
        yield ProgramOption((name,), "VALUE", "=", choices=tuple(choices.split(", ")), is_hydra=True)
    lines = config.partition("Powered by Hydra")[0].strip().splitlines()
    shown = yaml.safe_load("\n".join(line for line in lines if not line.startswith("Override anything")))
    for name, value in flatten(shown or {}).items():
        yield ProgramOption((name,), "VALUE", "=", default=format_value(value), is_hydra=True)
