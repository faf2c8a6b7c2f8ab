"""The command searchlight, which an installation provides: run, check, resume, report and list searches."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

from searchlight import __version__
from searchlight.search import run
from searchlight.search.config.search_config import OPTIONS
from searchlight.search.errors import UsageError
from searchlight.search.folder.locations import parse_storage, resolve_place
from searchlight.search.formatting import PROGRAM, format_command
from searchlight.search.reporting.console.command_line import HELP_NAMES, Command, build_parameters, run_command
from searchlight.search.reporting.console.listing import print_searches
from searchlight.search.steering.operations import OPERATIONS

RESUMABLE = build_parameters([option for option in OPTIONS if option.resumable or option.key == "storage"])
for _parameter in RESUMABLE:
    if isinstance(_parameter, click.Option) and _parameter.name != "storage" and _parameter.help:
        _parameter.help = re.sub(" Default: .*", " Default: as before.", _parameter.help)
STORAGE = [parameter for parameter in RESUMABLE if parameter.name == "storage"]
SIZES = [parameter for parameter in run.PARAMETERS if parameter.name == "sizes"]
SET = [parameter for parameter in run.PARAMETERS if parameter.name == "set"]
DEVICE = click.Option(
    ["--device"], type=click.Choice(["cuda"]), default="cuda", help="What to simulate. Default: cuda."
)
SCRIPTS = ("report", "ui", "mcp")
STEERING = ("status", "trials", "explain", "log", *OPERATIONS)
FORMAT = click.Option(
    ["--format"], type=click.Choice(["yaml", "args", "python"]), default="yaml", help="What to print. Default: yaml."
)


class _Group(click.Group):
    """The commands. Those that read a study are imported on use only, since their imports take long."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *SCRIPTS, *STEERING]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in SCRIPTS:
            main: click.Command = import_module(f"searchlight.search.{name}").main
            return main
        if name in STEERING:
            from searchlight.search.steer import COMMANDS

            return next(command for command in COMMANDS if command.name == name)
        return super().get_command(ctx, name)


@click.group(cls=_Group, context_settings=HELP_NAMES)
@click.version_option(__version__, prog_name=PROGRAM)
def searchlight() -> None:
    """Search over the hyperparameters of mixed-precision training."""


searchlight.add_command(
    run.RunCommand(
        "run",
        params=[parameter for parameter in run.PARAMETERS if parameter not in (run.RESUME, run.LIST)],
        callback=run.main.callback,
        help=run.main.help,
    )
)


@searchlight.command("resume", cls=Command, params=[click.Argument(["name"]), *RESUMABLE, run.JSON])
def resume(name: str, as_json: bool, **options: Any) -> None:
    """Resume the search NAME, to finish it or to add trials."""
    run.resume_search(name, as_json, options)


@searchlight.command("check", cls=Command, params=[*run.PARAMETERS[:2], DEVICE, *SET, *SIZES, run.JSON])
def check(task: str, more: tuple[str, ...], device: str, as_json: bool, **options: Any) -> None:
    """Check without a GPU whether TASK would run on one. Exit with code 1 if it would not.

    With --sizes, e.g. width=64,128,256, show instead which layers grow with the size after a few updates.

    TASK and NAME=VALUE are those of the command run.
    """
    if not task:
        raise UsageError("task must be given, e.g. path/to/file.py:ClassName. See --help.")
    given = {"task": task, "set": (*options["set"], *more), "sizes": options["sizes"]}
    run.check_device(given, as_json)


@searchlight.command("list", cls=Command, params=[*STORAGE, run.JSON])
def list_searches(storage: str | None, as_json: bool) -> None:
    """List the searches in a folder or bucket."""
    print_searches(parse_storage(storage or "runs"), as_json)


@searchlight.command("best", cls=Command, params=[click.Argument(["name"]), FORMAT, *STORAGE])
def print_best(name: str, format: str, storage: str | None) -> None:
    """Print the parameters of the best config of the search NAME, also while it runs.

    They are the searched ones and those of --set, of the confirmed config if there is one. NAME may be a folder.
    """
    from searchlight.search.analysis.result import SearchResult
    from searchlight.search.reporting.best_params import FORMATS, format_command_args, select_params
    from searchlight.search.study.record import load_search

    result = SearchResult.from_record(load_search(resolve_place(name, parse_storage(storage or "runs"))))
    if result.best is None:
        raise UsageError(f"name must be a search with a result, but no trial of {result.name} has one.")
    params = select_params(result)
    text = format_command_args(params, result.searched.about) if format == "args" else FORMATS[format](params)
    print(text.rstrip("\n"))


@searchlight.command("init", cls=Command)
@click.argument("file", default="my_task.py")
def init(file: str) -> None:
    """Write a task to begin from, by default to my_task.py. FILE may be a folder."""
    path = Path(file)
    if path.is_dir():
        path = path / "my_task.py"
        file = str(path)
    text = Path(__file__).with_name("task_template.py").read_text(encoding="utf-8")
    if path.suffix != ".py":
        raise UsageError(f"FILE must end in .py, but got {file}. Use {path.with_suffix('.py')}.")
    try:
        with path.open("x", encoding="utf-8") as opened:
            opened.write(text.replace("{file}", file))
    except FileExistsError:
        raise UsageError(f"FILE must be new, but {file} exists. Choose another name.") from None
    except OSError as error:
        raise UsageError(f"FILE must be in a folder that can be written to, but {error}.") from error
    print(f"written: {file}\nsearch: {format_command('run')} {file}:MyTask --trials 20")


def main() -> NoReturn:
    """Run the command searchlight."""
    run_command(searchlight)
