"""Finds the option of a program that takes each parameter of a search."""

import difflib
import re
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from searchlight.search.command.help_text import ProgramOption
from searchlight.search.errors import UsageError
from searchlight.search.formatting import join_words
from searchlight.trainables.command.settings import Flag
from searchlight.trainables.command.template import format_value, parse_list

LISTED = 12  # names in a message
EPOCHS = "epochs"  # it may only say how many reports a trial makes
TYPES = {"int": "integers", "float": "numbers", "bool": "true,false"}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a search, as the user gave it.

    Attributes:
        source: The option that names it, e.g. "--search".
        values: The bounds of a range, all choices, or the fixed value.
    """

    name: str
    source: str
    values: Sequence[Any]


def choose_flags(options: Sequence[ProgramOption], parameters: Sequence[Parameter], program: str) -> dict[str, Flag]:
    """Return how a program with `options` takes `parameters`, by name.

    A name may have "-" where the option has "_". `epochs` gets no flag if there is no such option.

    Raises:
        UsageError: There is no option for a parameter, or it does not take the values.
    """
    flags: dict[str, Flag] = {}
    problems = list[str]()
    for parameter in parameters:
        if found := _find_option(options, parameter):
            option, name = found
            problems += _find_problems(parameter, option, name, program)
            flags[parameter.name] = _make_flag(parameter, option, name)
        elif any(_takes_arguments(option, normalize(parameter.name)) for option in options):
            flags[parameter.name] = Flag((f"--{parameter.name}", "{value}"))
        elif parameter.name != EPOCHS:
            names = [name.lstrip("-") for option in options for name in option.names if not name.endswith(".help")]
            rule = f"must be an option of {program}, but it has none of that name."
            remedy = suggest_name(parameter.name, names, f"{program} --help lists {len(options)}.")
            problems.append(f"{parameter.source} {parameter.name} {rule} {remedy}")
    if problems:
        raise UsageError(*problems)
    return flags


def has_option(options: Sequence[ProgramOption], parameter: Parameter) -> bool:
    """Return whether a program with `options` has one that may take `parameter`."""
    takes_any = any(_takes_arguments(option, normalize(parameter.name)) for option in options)
    return takes_any or _find_option(options, parameter) is not None


def find_defaults(options: Sequence[ProgramOption], parameters: Sequence[Parameter]) -> dict[str, str]:
    """Return the values that a program with `options` has for `parameters` without them, as far as its help says so."""
    defaults = {}
    for parameter in parameters:
        if found := _find_option(options, parameter):
            option, name = found
            shown = option.default if option.metavar else _find_state(option, name)
            if shown is not None:
                defaults[parameter.name] = shown
    return defaults


def take_values(
    words: Sequence[str], options: Sequence[ProgramOption], parameters: Sequence[Parameter]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return a command without the options that take `parameters`, and the last value that it gave to each, as text.

    Otherwise, a program with `options` would get two values. Lists stay, because programs read them differently. The
    text is "" for an option without its value.
    """
    scripts = [place for place, word in enumerate(words) if word.endswith(".py") or words[place - 1 : place] == ("-m",)]
    kept, given = [*words[: scripts[0] + 1 if scripts else 1]], dict[str, str]()
    rest = deque(words[len(kept) :])
    by_name = {
        option_name: (parameter.name, option, name)
        for parameter in parameters
        if (found := _find_option(options, parameter))
        for option, name in [found]
        if not (option.is_list or option.count > 1)
        for option_name in option.names
    }
    while rest:
        word = rest.popleft()
        start, equals, value = word.partition("=")
        parameter, option, name = by_name.get(start, ("", None, ""))
        if option is None or (equals and not option.metavar) or (option.is_hydra and not equals):
            kept.append(word)
        elif option.metavar:
            # With nargs="?", a value may be left out. Then the next word is another option, and no number like -1.
            has_value = rest and not (option.metavar.startswith("[") and re.match(r"-(?!\.?\d)", rest[0]))
            given[parameter] = value if equals else rest.popleft() if has_value else ""
        else:
            given[parameter] = str(start != _find_opposite(option, name))
    return tuple(kept), given


def _find_state(option: ProgramOption, name: str) -> str | None:
    """Return whether the switch `name` is on if it is left out, as text, or None if it is unknown."""
    shown, off = option.default, _find_opposite(option, name)
    if not off or shown is None:
        return None if off else "False"  # which is to leave it out
    if shown.lower() in ("true", "false"):  # of the positive name
        return str((shown.lower() == "true") == (len(name) < len(off)))
    return str(normalize(shown) != normalize(off))  # [default: no-cache]


def fill_style(
    style: str, parameters: Sequence[Parameter], takes_several: Callable[[str], bool] = lambda option: False
) -> dict[str, Flag]:
    """Return the flags of words like "--{name}={value}", by parameter without `epochs`.

    Args:
        takes_several: Returns whether an option takes the words of all parameters at once, as with nargs="+" of
            argparse, which keeps only the last ones of an option that is repeated.

    Raises:
        UsageError: They have no {name} or no {value}, or an open quotation.
    """
    if missing := [part for part in ("{name}", "{value}") if part not in style]:
        known = "must be auto, none or like '--{name}={value}'"
        raise UsageError(f"--flags {known}, but {style!r} has no {join_words(missing)}.")
    try:
        words = shlex.split(style)
    except ValueError as error:
        raise UsageError(f"--flags must be words as in a shell, but got {style!r}: {error}.") from error
    names = [parameter.name for parameter in parameters if parameter.name != EPOCHS]
    shared = ""
    if re.fullmatch(r"--?[A-Za-z][\w-]*", words[0]) and takes_several(words[0]):
        shared, *words = words
    return {name: Flag(tuple(word.replace("{name}", name) for word in words), shared=shared) for name in names}


def suggest_name(name: str, valid: Iterable[str], otherwise: str = "") -> str:
    """Return "Did you mean ...?" with the nearest names, or all names if they are few, or else `otherwise`."""
    names = sorted(set(valid))
    last = normalize(name).rpartition(".")[2]
    near = [other for other in names if normalize(other).rpartition(".")[2] == last][:3]
    near = near or difflib.get_close_matches(name, names, n=1)
    if near:
        return f"Did you mean {join_words(near, 'or')}?"
    return f"Choose from {', '.join(names)}." if names and (len(names) <= LISTED or not otherwise) else otherwise


def normalize(name: str) -> str:
    """Return a name as it is compared with others: without leading hyphens, and with "_" for "-"."""
    return name.lstrip("-").replace("-", "_")


def _find_option(options: Sequence[ProgramOption], parameter: Parameter) -> tuple[ProgramOption, str] | None:
    """Return the first option of the name of a parameter, and its name as the program takes it."""
    wanted = normalize(parameter.name)
    found = ((option, name) for option in options for name in option.names if normalize(name) == wanted)
    return next(found, None)


def _takes_arguments(option: ProgramOption, name: str) -> bool:
    """Return whether `option` describes a class whose arguments are options too, as --optimizer.help of Lightning."""
    return any(own.endswith(".help") and name.startswith(normalize(own).removesuffix("help")) for own in option.names)


def _make_flag(parameter: Parameter, option: ProgramOption, name: str) -> Flag:
    if not option.metavar:
        off = _find_opposite(option, name)
        return Flag((name,), (off,) if off else ())
    is_negative = any(isinstance(value, int | float) and value < 0 for value in parameter.values)
    if option.is_hydra:
        return Flag((f"{name}={{value}}",), is_hydra=True)
    if option.is_list or option.count > 1:
        return Flag((name, "{value}"), is_list=True)
    if option.sign == "=" or (is_negative and name.startswith("--")):  # -1e-05 looks like an option
        return Flag((f"{name}={{value}}",))
    return Flag((name, "{value}"))


def _find_opposite(option: ProgramOption, name: str) -> str:
    """Return the other name of a switch, which turns off what `name` turns on, or ""."""
    positive = normalize(name)
    opposites = {f"no_{positive}", f"no{positive}", positive.removeprefix("no_"), positive.removeprefix("no")}
    *path, last = positive.split(".")  # --model.no-bias
    opposites |= {".".join([*path, f"no_{last}"]), ".".join([*path, last.removeprefix("no_")])}
    found = (other for other in option.names if other != name and normalize(other) in opposites - {positive})
    return next(found, "")


def _find_problems(parameter: Parameter, option: ProgramOption, name: str, program: str) -> Iterator[str]:
    """Yield a line if the option `name` does not take the values of a parameter."""
    where, of_program = f"{parameter.source} {parameter.name}", f"{name} of {program}"
    kind = option.type if option.metavar else "bool"
    lists = [parse_list(value) for value in parameter.values]
    takes_lists = option.is_list or option.count > 1
    values = [
        item
        for value, items in zip(parameter.values, lists, strict=True)
        for item in (items if items and takes_lists else [value])
        if item is not None
    ]
    wrong = [value for value in values if not _is_of_type(value, kind)]
    allowed = {choice.lower() for choice in option.choices}
    others = [value for value in values if format_value(value).lower() not in allowed]
    if option.count > 1 and any(items is None or len(items) != option.count for items in lists):
        named = " ".join(f"{{{parameter.name}{number}}}" for number in range(1, option.count + 1))
        example = ",".join(["[" + ",".join("12"[: option.count]) + "]", "..."])
        yield (
            f"{where} must be lists of {option.count} values like {example}, because {of_program} takes "
            f"{option.count}. To search each value, name it in the command: {name} {named}."
        )
    elif wrong:
        told = f"takes {option.metavar.strip('<>')}" if option.metavar else "is a switch"
        worst = next((value for value in wrong if value != int(value)), wrong[0]) if kind == "int" else wrong[0]
        yield f"{where} must be {TYPES[kind]}, because {of_program} {told}, but got {format_value(worst)}."
    elif any(value is False for value in values) and option.metavar and _takes_any_word(option):
        yield (
            f"{where} must not be true,false, because {of_program} takes a word: with type=bool of argparse, False is "
            f"true as well. If the program reads it right, name it in the command: {name} {{{parameter.name}}}."
        )
    elif option.choices and others:
        told = join_words(option.choices, "or")
        yield f"{where} must be {told}, because {of_program} takes no others, but got {format_value(others[0])}."


def _takes_any_word(option: ProgramOption) -> bool:
    """Return whether the help says nothing of an option's value. In brackets, the option is a switch as well."""
    return not (option.type or option.choices or option.sign == "=" or option.metavar.startswith("["))


def _is_of_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind in ("bool", "")
    return (
        not kind or (kind == "float" and isinstance(value, int | float)) or (kind == "int" and isinstance(value, int))
    )
