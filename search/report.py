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
from search.analysis.ranking import trial_rows
from search.config.validators import check_model_name
from search.errors import UsageError
from search.reporting.console.tables import (
    build_comparison_table,
    build_table,
    create_report_console,
    get_table_width,
)
from search.reporting.html import write_report
from search.reporting.html.comparison import write_comparison
from search.reporting.parquet import write_parquet
from search.storage.locations import parse_storage
from search.study.record import SearchRecord, load_search
from trainables.filesystem.paths import StoragePath


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
        searches = parse_storage(storage)
        folder = _resolve_folder(name, searches)
        check_model_name(register)
        if compare:
            _check_single_search_options(replay, log_model, register)
            return _compare(folder, [_resolve_folder(other, folder.parent) for other in compare])
        searched = load_search(folder)
    except UsageError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from error
    console = create_report_console()
    console.print(build_table(trial_rows(searched.trials, searched.objectives), get_table_width(console)))
    for divergence in find_divergence(searched.trials):
        console.print(f"diverged: {divergence}", highlight=False, soft_wrap=True)
    page = folder / "report.html"
    try:
        write_report(searched, page)
        write_parquet(searched.trials, folder / "trials.parquet")
    except OSError as error:
        print(f"--storage must be a folder that can be written to, but {error}.", file=sys.stderr)
        raise typer.Exit(2) from error
    console.print(f"page: {page}", highlight=False, soft_wrap=True)
    if replay:
        _replay(folder)
    if log_model or register is not None:
        _log_model(folder, register)


def _replay(folder: StoragePath) -> None:
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


def _log_model(folder: StoragePath, register: str | None) -> None:
    from search.tracking.model.best_model import ModelError, log_best

    try:
        print(log_best(folder, register or ""))
    except ModelError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from error


def _compare(folder: StoragePath, others: Sequence[StoragePath]) -> None:
    """Print the search in `folder` beside `others`, and write their page beside its own."""
    found, problems = list[SearchRecord](), list[str]()
    for where, path in [("", folder), *(("--compare ", other) for other in others)]:
        try:
            found.append(load_search(path))
        except UsageError as error:
            problems.extend(f"{where}{problem}" for problem in error.problems)
    if problems:
        raise UsageError(*problems)
    first, *rest = sides = comparison.compare([folder, *others], found)
    console = create_report_console()
    for rows in (comparison.build_comparison_rows(sides), comparison.build_config_rows(sides)):
        console.print(build_comparison_table(rows))
    for other in rest:
        for line in (comparison.summarize_difference(first, other), *comparison.config_differences(first, other)):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    path = folder / f"compare-{'-'.join(each.name for each in [folder, *others])}.html"
    try:
        write_comparison(sides, path)
    except OSError as error:
        print(f"{path} could not be written: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    console.print(f"written: {path}", highlight=False, soft_wrap=True)


def _resolve_folder(name: str, storage: StoragePath) -> StoragePath:
    """That of a search which is named, or whose folder is given."""
    named = storage / name
    try:
        return parse_storage(name) if "://" in name or ("/" in name and not named.is_dir()) else named
    except OSError as error:
        raise UsageError(f"--storage must be a place that can be read, but {error}.") from error


def _check_single_search_options(replay: bool, log_model: bool, register: str | None) -> None:
    """What is done for one search is not done while several are compared."""
    given = {"--replay": replay, "--log-model": log_model, "--register": register is not None}
    if extra := [flag for flag, is_given in given.items() if is_given]:
        raise UsageError(f"--compare must come without {' and '.join(extra)}. Give them in a call of their own.")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(main)
    app()
