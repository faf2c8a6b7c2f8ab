"""A search that ran, or still runs: the table of its trials, its report.html and trials.parquet.

python search/report.py NAME [--storage runs] [--replay] [--log-model | --register MODEL]
python search/report.py NAME --compare OTHER [--compare ANOTHER]
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

if sys.path[0] == str(Path(__file__).resolve().parent):
    # As a script this folder is on the path, and its files would hide libraries and users' modules of their names.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import typer

from search.analysis import comparison
from search.analysis.divergence import find_divergence
from search.config.validators import check_model_name
from search.errors import UsageError
from search.reporting.console.tables import report_console, side_by_side, trial_table, width_of
from search.reporting.html import write_page
from search.reporting.html.comparison import write_comparison
from search.reporting.parquet import write_parquet
from search.storage.locations import storage_of
from search.study.record import Searched, read
from trainables.filesystem.paths import Place


def main(
    name: Annotated[str, typer.Argument(help="of the search, or its folder")],
    storage: Annotated[str, typer.Option(help="the folder of the searches, or s3://bucket/path")] = "runs",
    replay: Annotated[bool, typer.Option("--replay", help="tell MLflow what it lacks of the search")] = False,
    log_model: Annotated[bool, typer.Option("--log-model", help="the best checkpoint as a model in MLflow")] = False,
    register: Annotated[str | None, typer.Option(metavar="MODEL", help="that, and a version in its registry")] = None,
    compare: Annotated[list[str] | None, typer.Option(metavar="OTHER", help="another search, or its folder")] = None,
) -> None:
    """Print the table of a search, and write its page and its Parquet file anew. Or compare it with others."""
    try:
        searches = storage_of(storage)
        folder = _folder_of(name, searches)
        check_model_name(register)
        if compare:
            _check_alone(replay, log_model, register)
            return _compare(folder, [_folder_of(other, folder.parent) for other in compare])
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


def _replay(folder: Place) -> None:
    from search.tracking.replay import replay  # imports the task's libraries
    from search.tracking.tracker import TrackingError

    try:
        print(replay(folder))
    except UsageError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from error
    except TrackingError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from error


def _log_model(folder: Place, register: str | None) -> None:
    from search.tracking.model.best_model import ModelError, log_best

    try:
        print(log_best(folder, register or ""))
    except ModelError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from error


def _compare(folder: Place, others: Sequence[Place]) -> None:
    """Print the search in `folder` beside `others`, and write their page beside its own."""
    found, problems = list[Searched](), list[str]()
    for where, path in [("", folder), *(("--compare ", other) for other in others)]:
        try:
            found.append(read(path))
        except UsageError as error:
            problems.extend(f"{where}{problem}" for problem in error.problems)
    if problems:
        raise UsageError(*problems)
    first, *rest = sides = comparison.compare([folder, *others], found)
    console = report_console()
    for rows in (comparison.rows(sides), comparison.best_configs(sides)):
        console.print(side_by_side(rows))
    for other in rest:
        for line in (comparison.verdict(first, other), *comparison.differences(first, other)):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    path = folder / f"compare-{'-'.join(each.name for each in [folder, *others])}.html"
    try:
        write_comparison(sides, path)
    except OSError as error:
        print(f"{path} could not be written: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    console.print(f"written: {path}", highlight=False, soft_wrap=True)


def _folder_of(name: str, storage: Place) -> Place:
    """That of a search which is named, or whose folder is given."""
    named = storage / name
    try:
        return storage_of(name) if "://" in name or ("/" in name and not named.is_dir()) else named
    except OSError as error:
        raise UsageError(f"--storage must be a place that can be read, but {error}.") from error


def _check_alone(replay: bool, log_model: bool, register: str | None) -> None:
    """What is done for one search is not done while several are compared."""
    given = {"--replay": replay, "--log-model": log_model, "--register": register is not None}
    if extra := [flag for flag, is_given in given.items() if is_given]:
        raise UsageError(f"--compare must come without {' and '.join(extra)}. Give them in a call of their own.")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(main)
    app()
