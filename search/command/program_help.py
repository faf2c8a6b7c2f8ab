"""Asks a program for its options."""

import ast
import difflib
import re
import shlex
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from searchlight.search.command.flags import normalize, suggest_name
from searchlight.search.command.help_text import ProgramOption, parse_help
from searchlight.search.command.options import name_program
from searchlight.search.errors import UsageError
from searchlight.trainables.command.output import LONGEST_SHOWN, OutputPatterns
from searchlight.trainables.command.process import ChildProcess, start_process
from searchlight.trainables.command.settings import CommandSettings
from searchlight.trainables.command.template import Launch, fill
from searchlight.trainables.command.trial_folder import TRIALS, TrialFolder

HELP_S = 120.0  # imports of large libraries take a minute on a busy machine
STOP_S = 5.0
REST_S = 15.0  # that a program may take after a line with a metric, since a help may have one as an example
POLL_S = 0.1
LARGEST_HELP = 2**20  # characters
REMEDY = (
    "Give each parameter a place in the command, like --lr={lr}, or say how it takes them: --flags '--{name}={value}', "
    "or --flags none if it calls searchlight.params()."
)
# Plain and wide, and without a buffer, since what it prints tells whether it trains.
PLAIN = {"COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb", "PAGER": "cat", "PYTHONUNBUFFERED": "1"}
# They have options of their own, and start the program several times.
STARTERS = ("torchrun", "accelerate", "deepspeed")
STARTER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
IS_HELP = re.compile(r"usage|--help|flags:|powered by hydra", re.IGNORECASE)


class NoHelpError(UsageError):
    """A program runs as without --help."""


def read_options(
    words: Sequence[str],
    folder: Path,
    values: Mapping[str, Any],
    limit: float = HELP_S,
    needs_some: bool = True,
    metrics: Sequence[str] = (),
) -> list[ProgramOption]:
    """Return the options that the help of a command shows.

    The program runs once, in a folder like that of a trial but with copies of code, because it may ignore --help and
    write files.

    Args:
        words: The command with its placeholders.
        folder: The user's folder.
        values: A value of each parameter by name, since options before --help are parsed as well.
        limit: Seconds that the program may take.
        needs_some: Whether it must have options. Else one that runs as without --help has none.
        metrics: Patterns of metrics in the output, as NAME=REGEX or NAME=json: a program that prints one trains.

    Raises:
        UsageError: It cannot be started or fails.
        NoHelpError: It must have options, but does not end in time or shows none.
    """
    with tempfile.TemporaryDirectory() as scratch:
        trial, launch = _prepare_trial(words, folder, values, scratch)
        argv = [*_select_words(strip_starter(launch.argv), folder), "--help"]
        shown = shlex.join([*_select_words(strip_starter(words), folder), "--help"])  # without temporary paths
        told = f"{shown} must show the options of the program, but"
        trained, patterns = list[str](), OutputPatterns(metrics)

        def find_metric(line: str) -> None:
            if not trained and any(patterns.find(line)):
                trained.append(line.strip())

        try:
            process = start_process(argv, launch.environment, trial.path, trial.output, find_metric, STOP_S)
        except OSError as error:
            raise UsageError(f"{told} {argv[0]} cannot be started: {error.strerror}.") from error
        code = _wait(process, limit, trained)
        process.stop() if code is None else process.close()
        if unkept := process.output.error:
            raise UsageError(f"{told} its output cannot be kept: {unkept}.") from unkept
        with trial.output.open(encoding="utf-8", errors="replace") as stream:
            text = stream.read(LARGEST_HELP)
        options = parse_help(text) if IS_HELP.search(text) else []
        if not (code or options or needs_some):
            return []
        if code is None and not (trained and options):  # a line of the help was taken for a metric
            why = f" after {limit:g} s, because it may have begun to train"
            if trained:
                why = f", because it trains: it printed {trained[0][:LONGEST_SHOWN]!r}"
            raise NoHelpError(f"{told} was stopped{why}. {REMEDY}")
        if code and not options:
            ended = f"ended with exit code {code}: {process.output.tail().rpartition(chr(10))[2]}".rstrip(": .")
            raise UsageError(f"{told} {ended}. {REMEDY}")
        if not options:
            raise NoHelpError(f"{told} shows none. {REMEDY}")
        return [*_complete_options(options, [folder / word for word in argv if word.endswith(".py")])]


def _prepare_trial(
    words: Sequence[str], folder: Path, values: Mapping[str, Any], scratch: str
) -> tuple[TrialFolder, Launch]:
    """Return a folder like that of a trial in the folder `scratch`, with copies of code, and the command in it."""
    settings = CommandSettings(tuple(words), str(folder), str(Path(scratch) / "search" / TRIALS), objectives=())
    trial = TrialFolder(settings, 0)
    trial.prepare(copies_code=True)
    places = {"seed": "0", "trial": "0", "epochs": "1", "nproc": "1", "port": "29500", "trial_dir": str(trial.path)}
    places |= {"checkpoint_dir": str(trial.checkpoints)}
    launch = fill(settings, values, places)
    return trial, replace(launch, environment={**launch.environment, **PLAIN})


def _wait(process: ChildProcess, limit: float, trained: Collection[str]) -> int | None:
    """Return the exit code of a program, or None if it runs on after `limit` seconds or when `trained` has one."""
    end = time.monotonic() + limit
    while not trained and time.monotonic() < end:
        if (code := process.wait(POLL_S)) is not None:
            return code
    return process.wait(min(REST_S, max(0.0, end - time.monotonic())))


def read_declarations(script: Path) -> dict[str, tuple[str, str | None]]:
    """Return what a Python file tells argparse of an option, whose help often does not: its type and its default.

    The type is "int", "float" or "" for any other. The default is text, or None if it is no literal or the file may
    change it by `set_defaults`. An option of several subcommands has only what all of them say.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
    ...     _ = file.write('parser.add_argument("-w", "--width", type=int, default=8)')
    ...     file.flush()
    ...     read_declarations(Path(file.name))
    {'-w': ('int', '8'), '--width': ('int', '8')}
    """
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):  # the program itself will say so
        return {}
    found: dict[str, tuple[str, str | None]] = {}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    is_final = not any(_get_method(call) == "set_defaults" for call in calls)
    for call in (call for call in calls if _get_method(call) == "add_argument"):
        given = {each.arg: each.value for each in call.keywords}
        kind = given.get("type")
        type_name = kind.id if isinstance(kind, ast.Name) and kind.id in ("int", "float") else ""
        default = _read_literal(given.get("default")) if is_final else None
        for name in (str(each.value) for each in call.args if isinstance(each, ast.Constant)):
            former_type, former = found.get(name, (type_name, default))
            found[name] = (type_name if type_name == former_type else "", default if default == former else None)
    return found


def _get_method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _read_literal(node: ast.expr | None) -> str | None:
    try:
        value = None if node is None else ast.literal_eval(node)
    except ValueError:  # a name or a call
        return None
    return str(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None


def _complete_options(options: Sequence[ProgramOption], scripts: Sequence[Path]) -> Iterator[ProgramOption]:
    """Yield the options with what the scripts declare of them. The default of the help counts more."""
    declared = {name: said for script in scripts for name, said in read_declarations(script).items()}
    for option in options:
        kind, default = next((declared[name] for name in option.names if name in declared), ("", None))
        known = default if option.default is None and option.metavar else option.default
        yield replace(option, default=known, type=kind or option.type)


def find_unknown_options(words: Sequence[str], options: Sequence[ProgramOption], folder: Path) -> Iterator[str]:
    """Yield a line for each option in the words of a command that the program refuses, as far as that is sure.

    Args:
        options: Those that the help of the program shows.
        folder: The user's folder.
    """
    words = strip_starter(words)
    scripts = [place for place, word in enumerate(words) if word.endswith(".py") and (folder / word).is_file()]
    source = (folder / words[scripts[0]]).read_text(encoding="utf-8", errors="replace") if scripts else ""
    # The help of fire shows required arguments without hyphens, but it takes them as options, too.
    arguments = {*re.findall(r"\w+", source)} if "fire.Fire(" in source else set()
    refuses = "add_argument(" in source and "parse_known_args" not in source
    names = {name for option in options for name in option.names if name.startswith("--")}
    alike = set() if refuses else {*map(normalize, names)}
    program, remedy = name_program(tuple(words)), "If it takes this one, too, give --flags '--{name}={value}'."
    for word in dict.fromkeys(words[scripts[0] + 1 if scripts else 1 :]):
        name = word.partition("=")[0]
        if not names or not re.fullmatch(r"--[A-Za-z][\w-]*", name):  # keys with dots may belong to any class
            continue
        # argparse takes the begin of a name, and a command before others may have options of its own.
        if name == "--help" or any(known.startswith(name) for known in names) or name in source:
            continue
        if normalize(name) in arguments:
            continue
        near = difflib.get_close_matches(name, names, n=1)
        if normalize(name) not in alike and (refuses or near):
            rule = f"{name} in the command must be an option of {program}, but it has none of that name."
            yield f"{rule} {suggest_name(name, names, f'{program} --help lists {len(options)}.')} {remedy}"


def strip_starter(words: Sequence[str]) -> list[str]:
    """Return a command without torchrun or another program that starts its script.

    >>> strip_starter(["/env/bin/torchrun", "--standalone", "--nproc_per_node=2", "train.py", "--epochs=3"])
    ['/env/bin/python', 'train.py', '--epochs=3']
    """
    for index, word in enumerate(words):
        if Path(word).name in STARTERS:
            python = str(Path(word).parent / "python") if "/" in word else "python"
            before, rest = [*words[:index], python], words[index + 1 :]
        elif word in STARTER_MODULES and index and words[index - 1] == "-m":
            before, rest = [*words[: index - 1]], words[index + 1 :]
        else:
            continue
        for position, option in enumerate(rest):
            if option.endswith(".py"):
                return [*before, *rest[position:]]
            if option in ("-m", "--module"):
                return [*before, "-m", *rest[position + 1 :]]
    return [*words]


def _select_words(words: Sequence[str], folder: Path) -> Sequence[str]:
    """Return the words of a command that --help must follow: all, but for fire, which would run the program first."""
    for position, word in enumerate(words, start=1):
        script = folder / word
        if word.endswith(".py") and script.is_file() and b"fire.Fire(" in script.read_bytes():
            return words[:position]
    return words
