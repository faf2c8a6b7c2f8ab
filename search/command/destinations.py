"""Finds the destination of each parameter of a command: a place in the command, a flag, or a value in a file."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from searchlight.search.command.flags import (
    EPOCHS,
    Parameter,
    choose_flags,
    fill_style,
    find_defaults,
    has_option,
    normalize,
    take_values,
)
from searchlight.search.command.functions import name_called_function
from searchlight.search.command.help_text import ProgramOption
from searchlight.search.command.options import CommandOptions, name_program
from searchlight.search.command.params_code import ParamsCode, read_params_code
from searchlight.search.command.program_help import HELP_S, NoHelpError, find_unknown_options, read_options
from searchlight.search.command.targets import SEED, propose_patches, read_value, resolve_targets
from searchlight.search.errors import UsageError
from searchlight.trainables.command.settings import FileTarget, Flag
from searchlight.trainables.command.template import find_placeholders


@dataclass(frozen=True)
class Destinations:
    """How the parameters of a search reach a program. Those that no field has have a place in the command.

    Attributes:
        flags: By parameter.
        files: Values in YAML, JSON and TOML files.
        patches: Values in Python files.
        defaults: By parameter, the value that the program has by itself, as text, as far as it is known.
        words: The command without the values that it gave to parameters, or () if there were none.
    """

    flags: Mapping[str, Flag] = field(default_factory=dict)
    files: tuple[FileTarget, ...] = ()
    patches: tuple[FileTarget, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()


def resolve_parameters(
    options: CommandOptions, parameters: Sequence[Parameter], folder: Path, limit: float = HELP_S
) -> Destinations:
    """Return how the parameters of a search reach its command. Start the command with --help once if it must say so.

    Args:
        folder: The user's folder, in which the paths of files begin.
        limit: Seconds that the program may take to show its help.

    Raises:
        UsageError: A placeholder, an option or a place in a file does not exist, or a parameter has two of them.
    """
    if options.flags not in ("auto", "none") and (called := name_called_function(options.command)):
        raise UsageError(f"--flags must be left out, because {called} takes the parameters itself.")
    files, patches = resolve_targets(options, parameters, folder)
    given = {parameter.name for parameter in parameters}
    defaults = {
        target.parameter: read_value(folder / target.path, target.key)
        for target in (*files, *patches)
        if target.parameter in given
    }
    placed = [*find_placeholders(options.command), *(target.parameter for target in (*files, *patches))]
    placed = [*map(normalize, placed)]
    others = [parameter for parameter in parameters if normalize(parameter.name) not in placed]
    if options.seed_flag:
        others = [other for other in others if other.name != SEED]
        others.append(Parameter(options.seed_flag, "--seed-flag", [0]))
    values = {parameter.name: parameter.values[0] for parameter in parameters}
    values |= {target.path: str(folder / target.path) for target in files}
    # epochs may only say how many reports a trial makes, so that a program without options is as good.
    needs_some = any(other.name != EPOCHS for other in others)
    read = partial(read_options, folder=folder, limit=limit, needs_some=needs_some, metrics=options.metric)
    found, code = Destinations(), read_params_code(options.command, folder)
    if others and options.flags == "auto":
        found = _find_flags(options, others, folder, values, read, code)
    elif others and options.flags != "none":
        takes_several = partial(_takes_several, options, others, partial(read, options.command, values=values))
        found = Destinations(fill_style(options.flags, others, takes_several))
    flags = {SEED if name == options.seed_flag else name: flag for name, flag in found.flags.items()}
    if code:
        without_flag = [each.name for each in others if each.name not in flags]
        defaults |= {name: code.defaults[name] for name in without_flag if code.defaults.get(name)}
        if SEED in code.defaults or (options.seed_flag == SEED and SEED not in flags):
            flags.setdefault(SEED, Flag(()))
    words = found.words if found.words != options.command else ()
    return Destinations(flags, files, patches, {**defaults, **found.defaults}, words)


def _find_flags(
    options: CommandOptions,
    parameters: Sequence[Parameter],
    folder: Path,
    values: Mapping[str, Any],
    read: Callable[..., list[ProgramOption]],
    code: ParamsCode | None,
) -> Destinations:
    """Return the options of a program that take parameters, as its help shows them.

    Args:
        values: A value of each parameter, since options before --help are parsed as well.
        read: Reads the help of a command.
        code: What takes parameters without an option, or None.

    Raises:
        UsageError: The program has no such option, or another one that the command gives does not exist.
    """
    command = options.command
    others = [each for each in parameters if not (code and code.takes(each))]
    if code and not code.may_have_options:
        if others:
            problems = map(code.explain_unknown, others)
            raise UsageError(*problems, *propose_patches(options, others, folder))
        return Destinations()
    try:
        shown = read(command, values=values)
    except NoHelpError as error:
        if code and not others:
            return Destinations()
        raise UsageError(*error.problems, *propose_patches(options, others, folder)) from None
    if unknown := [*find_unknown_options(command, shown, folder)]:
        raise UsageError(*unknown)
    named = [each for each in parameters if each in others or has_option(shown, each)]
    try:
        flags = choose_flags(shown, named, name_program(command))
    except UsageError as error:
        misplaced = _find_root_options(command, shown, named, read)
        others_wrong = [line for line in error.problems if line.split()[1] not in misplaced]
        missing = [each for each in named if each.name not in misplaced and not has_option(shown, each)]
        proposals = propose_patches(options, missing, folder)
        raise UsageError(*misplaced.values(), *others_wrong, *proposals) from None
    words, given = take_values(command, shown, named)
    return Destinations(flags, defaults=find_defaults(shown, named) | given, words=words)


def _find_root_options(
    command: Sequence[str],
    shown: Sequence[ProgramOption],
    parameters: Sequence[Parameter],
    read: Callable[..., list[ProgramOption]],
) -> dict[str, str]:
    """Return a line for each parameter that is an option before a subcommand, and none of `shown`, by name."""
    scripts = [place for place, word in enumerate(command) if word.endswith(".py")]
    after = command[scripts[0] + 1] if scripts and scripts[0] + 1 < len(command) else ""
    if not re.fullmatch(r"[A-Za-z][\w-]*", after):
        return {}
    try:
        root = read(command[: scripts[0] + 1], values={})
    except UsageError:  # the line without it is true, too
        return {}
    own = {normalize(name) for option in shown for name in option.names}
    names = {normalize(name): (name, option) for option in root for name in option.names}
    lines = {}
    for each in parameters:
        key = normalize(each.name)
        if key in names and key not in own:
            name, option = names[key]
            rule = f"{each.source} {each.name} must be an option of {after}, but {name} belongs before {after}."
            there = f"Name it there: {name} {{{each.name}}} {after}"
            lines[each.name] = f"{rule} {there if option.metavar else 'A switch there cannot be searched.'}"
    return lines


def _takes_several(
    options: CommandOptions, parameters: Sequence[Parameter], read: Callable[[], list[ProgramOption]], name: str
) -> bool:
    """Return whether the option `name` of --flags takes the words of all parameters at once.

    Raises:
        UsageError: The help does not say it, or the words would take the place of some in the command.
    """
    names = [parameter.name for parameter in parameters if parameter.name != EPOCHS]
    is_named = any(word.partition("=")[0] == name for word in options.command)
    if len(names) < 2 and not is_named:
        return False  # repeated or not, it comes once
    style = options.flags.removeprefix(name).strip()
    words = [style.replace("{name}", each).replace("{value}", f"{{{each}}}") for each in names]
    program, remedy = name_program(options.command), f"Name them in the command: {' '.join([name, *words])}"
    try:
        shown = next((option for option in read() if name in option.names), None)
    except UsageError:
        shown = None
    if shown is None:
        rule = (
            f"must name an option that {program} --help shows, to know whether it can be repeated, but {name} is none."
        )
        raise UsageError(f"--flags {options.flags!r} {rule} {remedy}")
    if shown.is_list and is_named:
        raise UsageError(
            f"--flags must not repeat {name} of the command, because {program} keeps only the last words. {remedy}"
        )
    return shown.is_list
