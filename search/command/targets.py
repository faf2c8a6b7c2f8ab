"""The places that the user names for parameters: in the command, and in files."""

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from searchlight.search.command.flags import LISTED, Parameter, normalize, suggest_name
from searchlight.search.command.options import CommandOptions
from searchlight.search.errors import UsageError
from searchlight.search.formatting import join_words
from searchlight.trainables.command.file_values import Place, find_values, read_source, replace_values
from searchlight.trainables.command.output import OutputPatterns
from searchlight.trainables.command.settings import FileTarget
from searchlight.trainables.command.template import PLACES, find_placeholders

TOO_MANY = "Name the keys or the functions and variables that lead to the value, with dots."
SEED = "seed"  # the parameter whose value is the seed of a trial
# Of variables and arguments, and of what sets a generator, e.g. main.seed and torch.manual_seed.0.
_IS_SEED = re.compile(
    r"(?i)(.*\.)?((random_|global_|manual_)?seed"
    r"|(random\.seed|manual_seed|manual_seed_all|set_seed|fix_seed|seed_everything|seed_all)\.0)"
)
# Of how data are split or drawn, and of defaults that calls of such a function replace.
_IS_OTHER_SEED = re.compile(r"(?i)split|shuffle|data|load|(set_seed|fix_seed|seed_everything|seed_all)\.seed")
KINDS = {"--to": (".yaml", ".yml", ".json", ".toml"), "--patch": (".py",)}


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
        *_check_reached(options, files, patches, folder),
        *_check_expressions(options),
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


def propose_patches(options: CommandOptions, parameters: Sequence[Parameter], folder: Path) -> Iterator[str]:
    """Yield a line for each script in a command that has values with the names of `parameters` in its code.

    It has the options that search them. A name that leads to several values is left out.
    """
    wanted = {
        normalize(parameter.name).lower(): parameter.name
        for parameter in parameters
        if parameter.source != "--seed-flag"
    }
    for path, _, places in _read_scripts(options.command, folder) if options.cwd == "trial" else ():
        keys: dict[str, list[str]] = {}
        for key, found in places.items():
            keys.setdefault(key.rpartition(".")[2].lower(), []).extend([key] * len(found))
        patches = [f"{path}:{keys[each][0]}={name}" for each, name in wanted.items() if len(keys.get(each, [])) == 1]
        if patches:
            yield f"{path} has values with these names in its code. To search them there, give {_join(patches)}."


def propose_seeds(words: Sequence[str], folder: Path, taken: Collection[FileTarget]) -> str:
    """Return the options that give the seed of a trial to the seeds in the code of a command's scripts, or "".

    Args:
        taken: Places that have another parameter.
    """
    others = {(target.path, target.key) for target in taken}
    patches = [
        f"{path}:{key}={SEED}"
        for path, text, places in _read_scripts(words, folder)
        for key, found in places.items()
        if _IS_SEED.fullmatch(key) and not _IS_OTHER_SEED.search(key) and (path, key) not in others
        if len(found) == 1 and text[found[0].start : found[0].end].isdecimal()
    ]
    return _join(patches)


def _read_scripts(words: Sequence[str], folder: Path) -> Iterator[tuple[str, str, dict[str, list[Place]]]]:
    """Yield each script that a command names in `folder`, its code, and the places of the values in it."""
    for path in dict.fromkeys(word for word in words if word.endswith(".py")):
        if PurePath(path).is_absolute() or ".." in PurePath(path).parts:
            continue
        try:
            text = read_source(folder / path)
            places = find_values(path, text)
        except (OSError, ValueError):  # the program itself will say so
            continue
        yield path, text, places


def _join(patches: Sequence[str]) -> str:
    return " ".join(f"--patch {shlex.quote(patch)}" for patch in patches)


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


def _check_expressions(options: CommandOptions) -> Iterator[str]:
    """Yield a line for each expression that reads any number, because the text before it is taken for the name."""
    for text in options.metric:
        if any(OutputPatterns([text]).find("~ 7.25 ~")):
            name, _, expression = text.partition("=")
            yield (
                f"--metric {text} must have the text beside the value, because it reads the first number of any line, "
                f"e.g. '{name}={name}={expression}', or '{name}=^{expression}$' for lines of nothing else."
            )


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
    options: CommandOptions, files: Sequence[FileTarget], patches: Sequence[FileTarget], folder: Path
) -> Iterator[str]:
    """Yield a line for each file whose copy the program cannot read, because it runs beside or names the original."""
    for path in sorted({target.path for target in (*files, *patches)}):
        if any(word.rpartition("=")[2] == str(folder / path) for word in options.command):
            yield f"the command must name {path} without its folder, because a trial changes a copy of {folder / path}."
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
