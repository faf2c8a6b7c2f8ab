"""The command line of a search: python search/run.py TASK [options]."""

import atexit
import json
import logging
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

if sys.path[0] == str(Path(__file__).resolve().parent):
    # As a script this folder is on the path, and its files would hide libraries and users' modules of their names.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import typer

from search.config import load_config
from search.errors import StoreError, UsageError
from search.reporting.console.listing import _print_plan, _print_searches
from search.storage.locations import parse_storage
from trainables.registry import BUILT_IN_TASKS

Assignments = list[str]
HELP = {"rich_help_panel": "Parameters of the task"}


def main(
    task: Annotated[
        str, typer.Argument(help=f"{', '.join(BUILT_IN_TASKS)}, path/to/file.py:ClassName or file.py:function")
    ] = "",
    more: Annotated[Assignments | None, typer.Argument(metavar="[NAME=VALUE]...", help="as --set")] = None,
    trials: Annotated[str | None, typer.Option(metavar="N", help="how many trials to start")] = None,
    time_budget: Annotated[str | None, typer.Option(metavar="TIME", help="30m, 2h")] = None,
    gpu_hours: Annotated[str | None, typer.Option(metavar="HOURS", help="that the trials may hold in all")] = None,
    stop_when: Annotated[
        str | None, typer.Option(metavar="METRIC>=VALUE", help="end with the first such report")
    ] = None,
    patience: Annotated[str | None, typer.Option(metavar="N", help="end after N trials with no better best")] = None,
    workers: Annotated[str | None, typer.Option(metavar="N", help="workers of one trial")] = None,
    cpus_per_worker: Annotated[str | None, typer.Option(metavar="N")] = None,
    gpus_per_worker: Annotated[str | None, typer.Option(metavar="N", help="1 where there are GPUs")] = None,
    resource: Annotated[
        Assignments | None, typer.Option(metavar="NAME=AMOUNT", help="a custom resource of a worker")
    ] = None,
    concurrency: Annotated[str | None, typer.Option(metavar="N", help="trials at a time; as many as fit")] = None,
    placement: Annotated[str | None, typer.Option(metavar="pack|spread", help="how nodes are filled")] = None,
    scheduler: Annotated[str | None, typer.Option(help="asha, asha-stop, hyperband, median, pbt or none")] = None,
    reduction_factor: Annotated[str | None, typer.Option(metavar="N", help="asha: one in N goes on")] = None,
    fidelity: Annotated[str | None, typer.Option(help="epochs, samples or gpu-seconds: what a trial gets")] = None,
    max_fidelity: Annotated[str | None, typer.Option(metavar="AMOUNT", help="of it, at most: 10m")] = None,
    grace_period: Annotated[str | None, typer.Option(metavar="AMOUNT", help="of it, at least")] = None,
    population: Annotated[str | None, typer.Option(metavar="N", help="pbt: members at a time")] = None,
    exploit_every: Annotated[str | None, typer.Option(metavar="N", help="pbt: epochs between comparisons")] = None,
    sampler: Annotated[str | None, typer.Option(help="tpe, gp, cmaes, qmc, nsga2 or random")] = None,
    seed: Annotated[str | None, typer.Option(metavar="N", help="of the sampler and the trials")] = None,
    set: Annotated[Assignments | None, typer.Option(metavar="NAME=VALUE", help="fix a parameter", **HELP)] = None,
    search: Annotated[
        Assignments | None,
        typer.Option(metavar="NAME=SPACE", help="search it: 1e-5..1e-2:log, 8..64:step=8, fp32,bf16", **HELP),
    ] = None,
    try_: Annotated[
        Assignments | None,
        typer.Option("--try", metavar="NAME=VALUE,...", help="a point to try first, after the defaults", **HELP),
    ] = None,
    warm_start: Annotated[
        Assignments | None,
        typer.Option(metavar="SEARCH", help="learn from it: a name, a folder, mlflow:EXPERIMENT", **HELP),
    ] = None,
    objective: Annotated[
        Assignments | None,
        typer.Option(metavar="METRIC[:min|max]", help="of a function; several give a Pareto front", **HELP),
    ] = None,
    mode: Annotated[str | None, typer.Option(metavar="min|max", help="of the first objective", **HELP)] = None,
    name: Annotated[str | None, typer.Option(help="of the search and its folder")] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="PLACE", help="the folder of the searches, runs, or s3://bucket/path")
    ] = None,
    study: Annotated[
        str | None, typer.Option(metavar="URL", help="sqlite:///path.db, postgresql://host/database; a file")
    ] = None,
    experiment: Annotated[str | None, typer.Option(help="in MLflow; the task's name")] = None,
    config: Annotated[Path | None, typer.Option(help="a YAML file with these options")] = None,
    max_failures: Annotated[str | None, typer.Option(metavar="N", help="lost workers that a trial survives")] = None,
    stall_timeout: Annotated[str | None, typer.Option(metavar="TIME", help="10m: a trial that hangs fails")] = None,
    cold: Annotated[bool, typer.Option("--cold", help="new workers for every trial")] = False,
    recycle_after: Annotated[str | None, typer.Option(metavar="N", help="new workers after so many trials")] = None,
    log_model: Annotated[bool, typer.Option("--log-model", help="the best checkpoint as a model in MLflow")] = False,
    register: Annotated[str | None, typer.Option(metavar="MODEL", help="that, and a version in its registry")] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="NAME", help="go on with a search that ended early or died")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="show warnings, failures and the end")] = False,
    once: Annotated[bool, typer.Option("--once", help="one training run, no search")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the resolved search and stop")] = False,
    list_: Annotated[bool, typer.Option("--list", help="the searches in the storage folder")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object at the end")] = False,
) -> None:
    """Search over the parameters of a training task; compare the trials in MLflow."""
    if re.fullmatch(r"[\w.]+=.*", task):  # the file of --config, or the search of --resume, names the task
        task, more = "", [task, *(more or [])]
    options: dict[str, Any] = {
        "task": task or None,
        "trials": trials,
        "time_budget": time_budget,
        "gpu_hours": gpu_hours,
        "stop_when": stop_when,
        "patience": patience,
        "workers": workers,
        "cpus_per_worker": cpus_per_worker,
        "gpus_per_worker": gpus_per_worker,
        "concurrency": concurrency,
        "placement": placement,
        "scheduler": scheduler,
        "reduction_factor": reduction_factor,
        "fidelity": fidelity,
        "max_fidelity": max_fidelity,
        "grace_period": grace_period,
        "population": population,
        "exploit_every": exploit_every,
        "sampler": sampler,
        "seed": seed,
        "objective": objective or None,
        "mode": mode,
        "name": name,
        "storage": storage,
        "study": study,
        "experiment": experiment,
        "max_failures": max_failures,
        "stall_timeout": stall_timeout,
        "cold": cold or None,
        "recycle_after": recycle_after,
        "log_model": log_model or None,
        "register": register,
        "quiet": quiet or None,
        "once": once or None,
    }
    given = {key: value for key, value in options.items() if value is not None}
    try:
        if list_:
            return _print_searches(parse_storage(storage or "runs"))
        if resume is None and "task" not in given and config is None:
            raise UsageError(
                f"task must be given: {next(iter(BUILT_IN_TASKS))}, or path/to/file.py:ClassName. See --help."
            )
        given["resources"] = _parse_assignments("--resource", resource or [])
        given["set"] = _parse_assignments("--set", [*(set or []), *(more or [])])
        given["search"] = _parse_assignments("--search", search or [])
        if try_:
            given["try"] = try_
        if warm_start:
            given["warm_start"] = warm_start
        from search.experiment import runner as searches  # imports the task's libraries

        if resume is not None:
            place = parse_storage(storage or "runs") / resume
            result = searches.resume(resume, place.parent, _select_resume_options(given, config, dry_run))
        else:
            resolved = load_config(given, config)
            place, quiet = resolved.path, resolved.quiet
            if dry_run:
                return _print_plan(searches.plan(resolved))
            result = searches.run(resolved)
    except UsageError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        raise typer.Exit(2) from error
    except StoreError as error:
        print(f"the search has ended: {error}.", file=sys.stderr)
        raise typer.Exit(1) from error
    from search.formatting import resume_command
    from search.reporting.console.streams import SafeStream
    from search.reporting.console.summary import print_summary
    from search.reporting.console.tables import create_report_console
    from search.study.trial import WITH_RESULT

    if as_json:
        print(json.dumps(result.to_dict()), file=SafeStream(sys.stdout))
    else:
        print_summary(create_report_console(), result, place, quiet)
    if "interrupted" in result.outcomes or not result.outcomes:  # or it was stopped before its first trial
        print(f"go on: {resume_command(place)}", file=SafeStream(sys.stderr))
    if not {*WITH_RESULT} & {*result.outcomes}:
        raise typer.Exit(1)


def _select_resume_options(given: dict[str, Any], config: Path | None, dry_run: bool) -> dict[str, Any]:
    """The options that are given beside --resume."""
    if config is not None or dry_run:
        raise UsageError("--resume must come without --config and --dry-run: the search goes on as it began.")
    return {name: value for name, value in given.items() if name != "storage" and value != {}}


def _parse_assignments(flag: str, texts: list[str]) -> dict[str, str]:
    """ "name=value" texts as a dict."""
    wrong = [text for text in texts if not text.partition("=")[0] or "=" not in text]
    if wrong:
        raise UsageError(*(f"{flag} must be like name=value, but got {text!r}." for text in wrong))
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def _exit_process(code: int) -> NoReturn:
    """End the process now: everything is written, and taking down torch, Ray and MLflow would take seconds more."""
    atexit._run_exitfuncs()  # those of libraries, which remove their temporary files
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:  # its reader has seen enough
            pass
        except OSError as error:
            code = code or 1
            with suppress(OSError):
                print(f"what was to be printed cannot be: {error}", file=sys.stderr)
    os._exit(code)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(main)
    try:
        app()
    except SystemExit as end:
        _exit_process(end.code if isinstance(end.code, int) else 1 if end.code else 0)
