"""Finds the destination of each parameter of a command: a place in the command, a flag, or a value in a file."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from searchlight.search.command.flags import (
    EPOCHS,
    LISTED,
    Parameter,
    choose_flags,
    fill_style,
    find_defaults,
    normalize,
    suggest_name,
    take_values,
)
from searchlight.search.command.help_text import ProgramOption
from searchlight.search.command.options import CommandOptions, name_program
from searchlight.search.command.program_help import HELP_S, find_unknown_options, read_options
from searchlight.search.errors import UsageError
from searchlight.search.formatting import join_words
from searchlight.trainables.command.file_values import find_values, read_source, replace_values
from searchlight.trainables.command.settings import FileTarget, Flag
from searchlight.trainables.command.template import PLACES, find_placeholders

TOO_MANY = "Name the keys or the functions and variables that lead to the value, with dots."
SEED = "seed"  # the parameter whose value is the seed of a trial
KINDS = {"--to": (".yaml", ".yml", ".json", ".toml"), "--patch": (".py",)}


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
    read = partial(read_options, folder=folder, limit=limit)
    found = Destinations()
    if others and options.flags == "auto":
        found = _find_flags(options.command, others, folder, values, read)
    elif others and options.flags != "none":
        takes_several = partial(_takes_several, options, others, partial(read, options.command, values=values))
        found = Destinations(fill_style(options.flags, others, takes_several))
    flags = {SEED if name == options.seed_flag else name: flag for name, flag in found.flags.items()}
    words = found.words if found.words != options.command else ()
    return Destinations(flags, files, patches, {**defaults, **found.defaults}, words)


def _find_flags(
    command: tuple[str, ...],
    parameters: Sequence[Parameter],
    folder: Path,
    values: Mapping[str, Any],
    read: Callable[..., list[ProgramOption]],
) -> Destinations:
    """Return the options of a program that take parameters, as its help shows them.

    Args:
        values: A value of each parameter, since options before --help are parsed as well.
        read: Reads the help of a command.

    Raises:
        UsageError: The program has no such option, or another one that the command gives does not exist.
    """
    shown = read(command, values=values)
    if unknown := [*find_unknown_options(command, shown, folder)]:
        raise UsageError(*unknown)
    try:
        flags = choose_flags(shown, parameters, name_program(command))
    except UsageError as error:
        misplaced = _find_root_options(command, shown, parameters, read)
        others_wrong = [line for line in error.problems if line.split()[1] not in misplaced]
        raise UsageError(*misplaced.values(), *others_wrong) from None
    words, given = take_values(command, shown, parameters)
    return Destinations(flags, defaults=find_defaults(shown, parameters) | given, words=words)


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


def resolve_targets(
    options: CommandOptions, parameters: Sequence[Parameter], folder: Path
) -> tuple[tuple[FileTarget, ...], tuple[FileTarget, ...]]:
    """Return the places of --to and those of --patch, with the names of parameters as the search has them.

    The seed of a trial may have several places, unless it is a parameter of the search.

    Raises:
        UsageError: A placeholder or a place does not exist, or a parameter has two of them.
    """
    files, patches = _parse_targets("--to", options.to), _parse_targets("--patch", options.patch)
    named = {*map(normalize, find_placeholders(options.command))}
    givable = parameters
    if all(parameter.name != SEED for parameter in parameters):
        givable = [*parameters, Parameter(SEED, "", [0])]
        named -= {SEED}
    problems = [
        *_check_placeholders(options, parameters, files),
        *_check_targets("--to", files, givable, named),
        *_check_targets("--patch", patches, givable, named),
        *_check_reached(options, files, patches),
        *_check_files("--to", files, givable, folder),
        *_check_files("--patch", patches, givable, folder),
    ]
    counts = Counter((target.path, target.key) for target in (*files, *patches))
    problems += [
        f"{path}:{key} must take one parameter, but got {count}." for (path, key), count in counts.items() if count > 1
    ]
    if problems:
        raise UsageError(*problems)
    names = {normalize(parameter.name): parameter.name for parameter in givable}

    def rename(targets: Sequence[FileTarget]) -> tuple[FileTarget, ...]:
        return tuple(replace(target, parameter=names[normalize(target.parameter)]) for target in targets)

    return rename(files), rename(patches)


def _parse_targets(option: str, texts: Sequence[str]) -> tuple[FileTarget, ...]:
    parsed = [re.fullmatch(r"([^:]+):(.+)=([\w.-]+)", text) for text in texts]
    example = {"--to": "config.yaml:optimizer.lr=lr", "--patch": "train.py:main.config.lr=lr"}[option]
    if wrong := [text for text, match in zip(texts, parsed, strict=True) if match is None]:
        raise UsageError(*(f"{option} must be like {example}, but got {text!r}." for text in wrong))
    return tuple(FileTarget(str(PurePath(match[1])), match[2], match[3]) for match in parsed if match)


def _check_placeholders(
    options: CommandOptions, parameters: Sequence[Parameter], files: Sequence[FileTarget]
) -> Iterator[str]:
    """Yield a line for each placeholder of the command and of its other options that nothing fills."""
    of_trial = [name for name in PLACES if name != "epochs"]  # which only a parameter gives
    known = {*of_trial, *(parameter.name for parameter in parameters), *(target.path for target in files)}
    comparable = {*map(normalize, known)}
    texts = {"the command": options.command, "--resume-with": options.resume_words}
    texts["--metrics-file"] = (options.metrics_file,)
    for where, words in texts.items():
        for name in find_placeholders(words):
            if normalize(name) in comparable:
                continue
            rule = f"{{{name}}} in {where} must be a parameter, or have double braces to stay as it is."
            if name == "epochs":
                rule = f"{{epochs}} in {where} must come with --set epochs=N: how many reports a trial makes."
            yield rule if name == "epochs" else f"{rule} {suggest_name(name, known)}"


def _check_targets(
    option: str, targets: Sequence[FileTarget], parameters: Sequence[Parameter], named: set[str]
) -> Iterator[str]:
    """Yield a line for each target whose parameter is none, or has a place in the command too."""
    names = {normalize(parameter.name) for parameter in parameters}
    for target in targets:
        where = f"{option} {target.path}:{target.key}={target.parameter}"
        if normalize(target.parameter) not in names:
            rule = f"must take seed or a parameter of --search or --set, but {target.parameter} is none."
            remedy = suggest_name(target.parameter, [parameter.name for parameter in parameters])
            yield f"{where} {rule} {remedy}".rstrip()
        elif normalize(target.parameter) in named:
            yield f"{where} must take a parameter that has no other place, but the command has {{{target.parameter}}}."


def _check_reached(
    options: CommandOptions, files: Sequence[FileTarget], patches: Sequence[FileTarget]
) -> Iterator[str]:
    """Yield a line for each file whose copy the program cannot read, because it runs beside the original."""
    if options.cwd == "here":
        named = {*find_placeholders(options.command)}
        for path in sorted({target.path for target in files} - named):
            yield f"--cwd must be trial with --to {path}, or the command must name its copy by {{{path}}}."
        for path in sorted({target.path for target in patches}):
            yield f"--cwd must be trial with --patch {path}, because a program that runs here reads the file itself."


def _check_files(
    option: str, targets: Sequence[FileTarget], parameters: Sequence[Parameter], folder: Path
) -> Iterator[str]:
    """Yield a line for each target whose file or place does not exist, or cannot take the values."""
    known = {normalize(parameter.name): parameter for parameter in parameters}
    for target in targets:
        path, parameter = target.path, known.get(normalize(target.parameter))
        where = f"{option} {path}:{target.key}"
        if PurePath(path).suffix.lower() not in KINDS[option]:
            yield f"{where} must name a file that ends with {join_words(KINDS[option], 'or')}."
        elif PurePath(path).is_absolute() or ".." in PurePath(path).parts:
            yield f"{where} must name a file in {folder}, because a trial gets a copy at the same place."
        elif not (folder / path).is_file():
            yield f"{where} must name a file that exists, but there is no {folder / path}."
        else:
            try:
                text = read_source(folder / path)
                places = find_values(path, text).get(target.key, [])
                if len(places) == 1:
                    for value in parameter.values if parameter else ():
                        replace_values(path, text, {target.key: value})
            except (OSError, ValueError) as error:
                yield f"{where} must take the value of {target.parameter}, but {error}."
                continue
            if len(places) != 1:
                yield f"{where} {_describe_places(path, text, target.key, len(places))}"


def read_value(file: Path, key: str) -> str:
    """Return the single value that a file has at `key`, as text."""
    text = read_source(file)
    [place] = find_values(file.name, text)[key]
    return text[place.start : place.end].strip("'\"")


def _describe_places(path: str, text: str, key: str, count: int) -> str:
    """Return why a key is no place for a value, which has `count` places in the text of its file."""
    places = find_values(path, text)
    if count:
        lines = [str(text.count("\n", 0, place.start) + 1) for place in places[key]]
        return f"must be one value, but {path} has it on the lines {join_words(lines)}."
    if below := [name for name in places if name.startswith(f"{key}.")]:
        return f"must be a single value, but is a group in {path}. Choose from {', '.join(below[:LISTED])}."
    return f"must be a single value in {path}, but there is none. {suggest_name(key, places, TOO_MANY)}".rstrip()
