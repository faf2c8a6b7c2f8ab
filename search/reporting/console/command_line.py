"""Common parts of the command lines of search/run.py and search/report.py."""

import atexit
import errno
import gc
import logging
import os
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

from searchlight.search.errors import StoreError, UsageError
from searchlight.search.option import REPLACED, Option
from searchlight.trainables.registry import PACKAGE

LONG_WORD = re.compile(r"(\S{200})\S{800,}")  # a value that would hide the rest of its line


HELP_NAMES = {"help_option_names": ["-h", "--help"]}


class GroupedOption(click.Option):
    """An option that --help lists under the heading `group`."""

    def __init__(self, group: str, *names: str, **settings: Any) -> None:
        super().__init__(names, **settings)
        self.group = group


class Command(click.Command):
    """A command that lists its options in groups and turns the errors of a search into exit codes."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{"context_settings": HELP_NAMES, **settings})

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = defaultdict(list)
        for parameter in self.get_params(ctx):
            if record := isinstance(parameter, click.Option) and parameter.get_help_record(ctx):
                groups[getattr(parameter, "group", "Options")].append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:  # one message for all versions of click
            if error.option_name in REPLACED:
                ctx.fail(f"{error.option_name} is gone. Use {REPLACED[error.option_name]}.")
            near = f" (Possible options: {', '.join(sorted(error.possibilities))})" if error.possibilities else ""
            ctx.fail(f"No such option: {error.option_name}{near}")

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (UsageError, OSError) as error:
            if (path := _find_long_path(error)) is not None:
                exit_with(f"a path must have at most 255 bytes in each name and 4095 in all, but got {path}", 2)
            if isinstance(error, OSError):
                raise
            exit_with(LONG_WORD.sub(r"\1...", str(error)), 2)
        except StoreError as error:
            exit_with(f"the search has ended: {error}.", 1)
        except KeyboardInterrupt:
            ctx.exit(130)


def _find_long_path(error: BaseException | None) -> str | None:
    """Return the beginning of the path that was too long for the operating system, or None if none caused `error`."""
    while error is not None and getattr(error, "errno", None) != errno.ENAMETOOLONG:
        error = error.__cause__
    return f"{str(error.filename)[:40]}..." if isinstance(error, OSError) else None


def build_parameters(options: Sequence[Option]) -> list[click.Parameter]:
    """Return the command-line parameters of `options`. Each passes its texts under its option's key."""
    return [
        GroupedOption(
            option.group,
            option.key,
            option.name,
            metavar=option.metavar or None,
            help=option.help,
            is_flag=not option.metavar or None,
            multiple=isinstance(option.default, list | tuple | dict),
        )
        for option in options
        if option.is_on_command_line
    ]


def exit_with(message: object, code: int) -> NoReturn:
    """Print `message` to standard error and exit with `code`."""
    print(message, file=sys.stderr)
    raise click.exceptions.Exit(code)


def run_script(module: str) -> NoReturn:
    """Run the command `main` of `module`, as a script of a clone does."""
    # The other folders of the clone, such as models/ and tests/, would hide modules of the user.
    root = PACKAGE.resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != root]
    run_command(import_module(module).main)


def run_command(command: click.Command) -> NoReturn:
    """Run `command` and exit without teardown, which would take seconds for torch, Ray and MLflow."""
    # With its defaults, the garbage collector takes a second while torch, Ray and MLflow are imported. A driver leaves
    # little garbage, so that these limits stay.
    gc.set_threshold(10_000, 20, 20)
    code = 0
    try:
        command()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
    atexit._run_exitfuncs()  # of libraries, to remove their temporary files
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:  # its reader has closed it
            pass
        except OSError as error:
            code = code or 1
            with suppress(OSError):
                print(f"the output cannot be printed: {error}", file=sys.stderr)
    os._exit(code)
