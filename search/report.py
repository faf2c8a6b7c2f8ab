"""Print the table of a finished or running search, and write its report.html, trials.parquet and best.yaml.

python search/report.py NAME [--storage runs] [--replay] [--log-model | --register MODEL]
python search/report.py NAME --compare OTHER [--compare ANOTHER]
"""

import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # from a clone, which need not be installed
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from searchlight.search.reporting.console.command_line import run_script

    run_script("searchlight.search.report")

import click

from searchlight.search.analysis import comparison
from searchlight.search.analysis.divergence import find_divergence
from searchlight.search.analysis.infeasibility import find_violated_constraints
from searchlight.search.analysis.result import SearchResult
from searchlight.search.errors import UsageError
from searchlight.search.folder.locations import parse_storage, resolve_place
from searchlight.search.reporting.best_params import write_best_params
from searchlight.search.reporting.console.command_line import Command, exit_with
from searchlight.search.reporting.console.summary import print_confirmations, print_trials
from searchlight.search.reporting.console.tables import build_details, create_report_console, print_line
from searchlight.search.reporting.html import write_report
from searchlight.search.reporting.parquet import write_parquet
from searchlight.search.study.record import SearchRecord, load_search
from searchlight.search.tracking.options import parse_model_name
from searchlight.trainables.filesystem.paths import StoragePath


@click.command(cls=Command)
@click.argument("name")
@click.option("--storage", metavar="PLACE", default="runs", help="Folder or bucket of the searches. Default: runs.")
@click.option("--replay", is_flag=True, help="Log to MLflow all data that it has missed.")
@click.option("--log-model", is_flag=True, help="Log the best checkpoint as a model in MLflow.")
@click.option("--register", metavar="MODEL", help="Log the best checkpoint and register it in MLflow under this name.")
@click.option("--compare", metavar="OTHER", multiple=True, help="Compare with this search. Can be repeated.")
def main(
    name: str, storage: str, replay: bool, log_model: bool, register: str | None, compare: tuple[str, ...]
) -> None:
    """Print the trials of a search, and write its result files again, or compare searches.

    NAME and OTHER are the name of a search or its folder.
    """
    folder = resolve_place(name, parse_storage(storage))
    try:
        parse_model_name(register)
    except ValueError as error:
        raise UsageError(f"--register {error}.") from error
    if compare:
        given = {"--replay": replay, "--log-model": log_model, "--register": register is not None}
        if extra := [flag for flag, is_given in given.items() if is_given]:
            raise UsageError(f"--compare must come without {' and '.join(extra)}. Call it once more with them.")
        return _compare(folder, [resolve_place(other, folder.parent) for other in compare])
    record = load_search(folder)
    console = create_report_console()
    print_trials(console, record)
    print_confirmations(console, record)
    for divergence in find_divergence(record.trials):
        print_line(console, f"diverged: {divergence}")
    for violated in find_violated_constraints(record.trials, record.objective):
        print_line(console, f"infeasible: {violated}")
    page = folder / "report.html"
    try:
        write_report(record, page)
        write_parquet(record.all_trials, folder / "trials.parquet")
        write_best_params(SearchResult.from_record(record), folder)
    except OSError as error:
        raise UsageError(f"--storage must be a folder that can be written to, but {error}.") from error
    print_line(console, f"page: {page}")
    if replay or log_model or register is not None:
        _log_to_mlflow(folder, replay, log_model or register is not None, register or "")


def _log_to_mlflow(folder: StoragePath, replay: bool, log_model: bool, register: str) -> None:
    from searchlight.search.tracking.errors import ModelError, TrackingError
    from searchlight.search.tracking.model.best_model import log_best  # imports the task's libraries
    from searchlight.search.tracking.replay import replay as log_missing

    try:
        if replay:
            print(log_missing(folder))
        if log_model:
            print(log_best(folder, register))
    except (ModelError, TrackingError) as error:
        exit_with(error, 1)


def _compare(folder: StoragePath, others: Sequence[StoragePath]) -> None:
    """Print the search in `folder` next to `others`."""
    records, problems = list[SearchRecord](), list[str]()
    for where, path in [("", folder), *(("--compare ", other) for other in others)]:
        try:
            records.append(load_search(path))
        except UsageError as error:
            problems.extend(f"{where}{problem}" for problem in error.problems)
    if problems:
        raise UsageError(*problems)
    first, *rest = sides = comparison.compare([folder, *others], records)
    console = create_report_console()
    for rows in (comparison.build_comparison_rows(sides), comparison.build_config_rows(sides)):
        console.print(build_details(rows))
    for other in rest:
        for line in (comparison.summarize_difference(first, other), *comparison.config_differences(first, other)):
            print_line(console, line)
    print_line(console, comparison.ONE_EACH)
