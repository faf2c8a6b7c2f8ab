"""The options of a search that runs a command."""

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PositiveFloat

from searchlight.search.option import Options, list_options, option, parse_duration, wrap_in_list
from searchlight.trainables.command.call import CALL_FUNCTION
from searchlight.trainables.command.output import OutputPatterns

CALL_OBJECTIVE = "searchlight.search.command.objective"
CALLS = (CALL_FUNCTION, CALL_OBJECTIVE)  # modules that call a function of the user
LAUNCHERS = re.compile(r"(python[\d.]*|torchrun|accelerate|uv|poetry|conda|env|bash|sh)(\.exe)?")


def split_command(value: Any) -> Any:
    """Return the words of a command, which may be given as one text. Return other values unchanged."""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    return _split_words("command", value) if isinstance(value, str) else value


def _split_words(key: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{key} must be words as in a shell, but got {text!r}: {error}") from error


def _check_words(text: Any) -> Any:
    _split_words("resume_with", text if isinstance(text, str) else "")
    return text


def name_program(words: tuple[str, ...]) -> str:
    """Return what a command is called: the file name of its script, or else of its program.

    >>> name_program(("python", "-u", "src/train.py", "config/small.py"))
    'train.py'
    >>> name_program(("python", "-m", "package.train", "--lr=0.1"))
    'package.train'
    """
    for before, word in pairwise(("", *words)):
        if word not in CALLS and (before in ("-m", *CALLS) or re.fullmatch(r"[^=\s]+\.(py|sh|jl|R)", word)):
            return Path(word).name
    names = [Path(word).name for word in words if re.fullmatch(r"[\w./+-]+", word) and not word.startswith("-")]
    return next((name for name in names if not LAUNCHERS.fullmatch(name)), names[0] if names else "command")


_command = partial(option, "Command")
Texts = Annotated[tuple[str, ...], BeforeValidator(wrap_in_list)]


class CommandOptions(Options):
    """How a search runs a command, gives it the parameters of a trial, and reads its metrics.

    >>> CommandOptions(command="python train.py --lr {lr}").command
    ('python', 'train.py', '--lr', '{lr}')
    >>> [*CommandOptions(every=100).find_problems()]
    ['--every must come with a command: searchlight run [options] -- python train.py']
    """

    command: Annotated[tuple[str, ...], BeforeValidator(split_command)] = option(
        "Only in a YAML file",
        (),
        "",
        "Command of a trial, as words or as one text. On the command line, it follows all options and --. Parameters "
        "replace {lr}, also {seed}, {trial}, {trial_dir}, {checkpoint_dir}, {epochs}, {nproc} and {port}.",
    )
    folder: str = option("Only in a YAML file", "", "", "Folder that the command belongs to. Default: the current one.")
    flags: str = _command(
        "auto",
        "STYLE",
        "How the command takes parameters that it does not name in braces, e.g. '--{name}={value}'. auto: as its "
        "--help shows, or as its code takes them of searchlight.params(). none: only in the environment, for a call "
        "that is not found.",
    )
    to: Texts = _command(
        (), "FILE:KEY=NAME", "Write parameter NAME to this key of a copy of a YAML, JSON or TOML file."
    )
    patch: Texts = _command(
        (), "FILE:PLACE=NAME", "Write parameter NAME to this literal of a copy of a Python file, e.g. main.config.lr."
    )
    metric: Texts = _command(
        (),
        "NAME=REGEX",
        "Read metric NAME from lines of the output: the first group of the expression. The group (?P<step>...) is "
        "its step. NAME=json: from lines of JSON.",
    )
    metrics_file: str = _command(
        "", "PATH", "Read metrics from this CSV or JSON-lines file, e.g. {trial_dir}/log.csv. Default: none."
    )
    every: PositiveFloat | None = _command(
        None, "STEPS", "Average the metrics of this many steps into one report. Default: each step is a report."
    )
    resume_with: Annotated[str, BeforeValidator(_check_words)] = _command(
        "",
        "ARGS",
        "Append these words from the second start of a trial on, e.g. '--resume {checkpoint_dir}/last'. "
        "Without them and without {checkpoint_dir} in the command, trials never pause. Default: none.",
    )
    stop_grace: Annotated[PositiveFloat, BeforeValidator(parse_duration)] = _command(
        10, "TIME", "Time that a trial has to end after SIGTERM, before SIGKILL.", resumable=True
    )
    seed_flag: str = _command(
        "", "NAME", "Parameter of the command that takes the seed, as {seed} in it does. Default: none."
    )
    cwd: Literal["trial", "here"] = _command(
        "trial", "trial|here", "Run in a folder for each trial, with links to the files here, or in this folder itself."
    )
    cold: bool = _command(False, "", "Start Python anew for each trial, instead of a copy with its libraries imported.")

    @property
    def resume_words(self) -> tuple[str, ...]:
        """The words of --resume-with."""
        return tuple(shlex.split(self.resume_with))

    @property
    def can_resume(self) -> bool:
        """Whether a trial of the command continues where it was stopped."""
        return bool(self.resume_with) or any("{checkpoint_dir}" in word for word in self.command)

    def find_problems(self) -> Iterator[str]:
        yield from super().find_problems()
        for known in list_options(CommandOptions):
            if not self.command and getattr(self, known.key) != known.default:
                yield f"{known.name} must come with a command: searchlight run [options] -- python train.py"
        for text in self.metric if self.command else ():
            try:
                OutputPatterns([text])
            except ValueError as error:
                yield str(error)


def list_words(values: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line that give the options in `values`, without the command and its folder."""
    words: list[str] = []
    for known in list_options(CommandOptions):
        value = values.get(known.key)
        if known.is_on_command_line and value not in (None, False, known.default, []):
            for each in value if isinstance(value, list | tuple) else [value]:
                words += [known.name] if each is True else [known.name, str(each)]
    return words
