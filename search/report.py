"""A search that ran, or still runs: the table of its trials, its report.html and trials.parquet.

python search/report.py NAME [--storage runs] [--replay] [--log-model | --register MODEL]
"""

import sys
from pathlib import Path
from typing import Annotated

if sys.path[0] == str(Path(__file__).resolve().parent):
    # As a script this folder is on the path, and its files would hide libraries and users' modules of their names.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import typer

from search.config import check_model_name
from search.divergence import find_divergence
from search.errors import UsageError
from search.export import write_parquet
from search.page import write_page
from search.study import read
from search.table import report_console, trial_table, width_of


def main(
    name: str,
    storage: Path = Path("runs"),
    replay: Annotated[bool, typer.Option("--replay", help="tell MLflow what it lacks of the search")] = False,
    log_model: Annotated[bool, typer.Option("--log-model", help="the best checkpoint as a model in MLflow")] = False,
    register: Annotated[str | None, typer.Option(metavar="MODEL", help="that, and a version in its registry")] = None,
) -> None:
    """Print the table of a search, and write its page and its Parquet file anew."""
    folder = storage.expanduser().absolute() / name
    try:
        check_model_name(register)
        searched = read(folder)
    except UsageError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from error
    console = report_console()
    console.print(trial_table(searched.trials, searched.objectives, width_of(console)))
    for divergence in find_divergence(searched.trials):
        console.print(f"diverged: {divergence}", highlight=False, soft_wrap=True)
    page = folder / "report.html"
    try:
        write_page(searched, page)
        write_parquet(searched.trials, folder / "trials.parquet")
    except OSError as error:
        print(f"--storage must be a folder that can be written to, but {error}.", file=sys.stderr)
        raise typer.Exit(2) from error
    console.print(f"page: {page}", highlight=False, soft_wrap=True)
    if replay:
        _replay(folder)
    if log_model or register is not None:
        _log_model(folder, register)


def _replay(folder: Path) -> None:
    from search.replay import replay  # imports the task's libraries
    from search.tracking import TrackingError

    try:
        print(replay(folder))
    except UsageError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from error
    except TrackingError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from error


def _log_model(folder: Path, register: str | None) -> None:
    from search.model import ModelError, log_best

    try:
        print(log_best(folder, register or ""))
    except ModelError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from error


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(main)
    app()
