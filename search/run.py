"""The command line of a search: python search/run.py TASK [options]."""

import json
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # from a clone, which need not be installed
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from searchlight.search.reporting.console.command_line import run_script

    run_script("searchlight.search.run")

import click

from searchlight.search.command.options import LAUNCHERS
from searchlight.search.config import load_config
from searchlight.search.config.search_config import OPTIONS
from searchlight.search.errors import UsageError
from searchlight.search.folder.locations import list_sized_searches, parse_storage
from searchlight.search.formatting import join_words
from searchlight.search.option import find_pair_problems, option_name, parse_duration
from searchlight.search.reporting.console.command_line import Command, GroupedOption, build_parameters
from searchlight.search.reporting.console.listing import print_plan, print_searches
from searchlight.trainables.filesystem.paths import StoragePath
from searchlight.trainables.registry import find_tasks

if TYPE_CHECKING:
    from searchlight.search.analysis.result import SearchResult
    from searchlight.search.config import SearchConfig
    from searchlight.search.experiment.ladder import LadderResult

START = "Start"
TRY_S = "60s"
RESUME = GroupedOption(START, "--resume", metavar="NAME", help="Resume the search NAME, to finish it or to add trials.")
LIST = GroupedOption(START, "--list", "list_", is_flag=True, help="List the searches in --storage and exit.")
JSON = GroupedOption(
    "Output", "--json", "as_json", is_flag=True, help="Print the result, the audit or the list of searches as JSON."
)
PARAMETERS = [
    click.Argument(["task"], default=""),
    click.Argument(["more"], nargs=-1, metavar="[NAME=VALUE]..."),
    GroupedOption(
        START, "--config", metavar="FILE", help="Read options from this YAML file. The command line overrides it."
    ),
    RESUME,
    LIST,
    GroupedOption(START, "--dry-run", is_flag=True, help="Print the plan of the search as YAML and exit."),
    GroupedOption(
        START, "--preflight", is_flag=True, help="Audit the task, print the findings and the estimated cost, and exit."
    ),
    GroupedOption(
        START,
        "--try-first",
        metavar="[TIME]",
        is_flag=False,
        flag_value=TRY_S,
        help="Run the command with its defaults for this time, print the metrics that it gives, and exit. TIME: 60s.",
    ),
    *build_parameters(OPTIONS),
    JSON,
]


class RunCommand(Command):
    """A command line whose words after -- are the command of a search."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.params["command"] = args[:at], tuple(args[at + 1 :])
            if not ctx.params["command"]:
                ctx.fail("a command must follow --, e.g. -- python train.py --seed {seed}")
            return super().parse_args(ctx, args)
        try:
            rest = super().parse_args(ctx, [*args])
            words = [ctx.params["task"], *ctx.params["more"]]
            if all("=" in word for word in words[1:]):
                return rest
        except click.UsageError:  # of an option of the program, e.g. -m of python
            words = args
        program = next((place for place, word in enumerate(words) if LAUNCHERS.fullmatch(Path(word).name)), None)
        if program is None:
            return super().parse_args(ctx, args)
        ctx.fail(f"a command must follow --, but got none. Use -- {shlex.join(args[args.index(words[program]) :])}")


@click.command(cls=RunCommand, params=PARAMETERS)
def main(
    task: str,
    more: tuple[str, ...],
    config: str | None,
    dry_run: bool,
    preflight: bool,
    try_first: str | None,
    as_json: bool,
    resume: str | None = None,
    list_: bool = False,
    command: tuple[str, ...] = (),
    **options: Any,
) -> None:
    """Search over the parameters of a training task, and compare the trials in MLflow.

    TASK is arc, liquid, lm, path/to/file.py:NAME or package.module:NAME. NAME is a task class, or a function of a
    config as for Ray Train and Ray Tune.
    NAME=VALUE fixes a parameter of TASK, as --set does.

    Instead of TASK, -- COMMAND runs a program as it is, e.g. -- python train.py --lr {lr} --seed {seed}. A function
    that reads the command line itself, takes the parameters or is an objective of Optuna is such a program too.
    """
    if task and re.fullmatch(r"[\w.]+=.*", task):  # the file of --config, or the search of --resume, names the task
        task, more = "", (task, *more)
    if list_:
        return print_searches(parse_storage(options["storage"] or "runs"), as_json)
    if try_first is not None and not (task or command or config or resume or try_first[:1].isdigit()):
        task, try_first = try_first, TRY_S  # e.g. --try-first train.py:main
    if not task and not command and resume is None and config is None:
        raise UsageError(
            f"task must be given: {next(iter(find_tasks()))}, path/to/file.py:ClassName, or -- COMMAND. See --help."
        )
    given = {**options, "command": command, "task": task or None, "set": (*options["set"], *more)}
    if resume is not None:
        if config is not None or dry_run or preflight or try_first is not None:
            raise UsageError(
                "--resume must come without --config, --dry-run, --preflight and --try-first: the search continues as "
                "it began."
            )
        return resume_search(resume, as_json, given)
    if try_first is not None:
        if dry_run or preflight or as_json:
            raise UsageError("--try-first must come without --dry-run, --preflight and --json: it prints metrics.")
        return try_command(given, try_first, Path(config) if config is not None else None)
    from searchlight.search.experiment import ladder, runner  # imports the task's libraries

    resolved = load_config(_select_given(given), Path(config) if config is not None else None)
    if resolved.sizes:
        if preflight or dry_run:
            raise UsageError("--sizes must come without --dry-run and --preflight, which look at one size: --set it.")
        ladder.run(resolved, show=partial(_print_ladder, location=resolved.path, as_json=as_json))
        return
    if preflight:
        return audit_search(resolved, dry_run, as_json)
    if dry_run:
        from searchlight.search.experiment.preflight import load_estimate

        search_plan = runner.plan(resolved)
        return print_plan(search_plan, load_estimate(search_plan))
    runner.run(resolved, show=partial(_print_result, location=resolved.path, quiet=resolved.quiet, as_json=as_json))


def try_command(options: Mapping[str, Any], limit: str, file: Path | None) -> None:
    """Run the command of a search for some time and print its metrics. Exit with code 1 if none can be judged."""
    from searchlight.search.command.try_first import observe
    from searchlight.search.experiment import runner
    from searchlight.search.reporting.console.first_metrics import print_observation
    from searchlight.search.reporting.console.tables import create_report_console

    try:
        seconds = parse_duration(limit)
    except ValueError as error:
        raise UsageError(f"--try-first {error}.") from None
    config = load_config(_select_given(options), file)
    if not config.command:
        raise UsageError(
            f"--try-first must come with a command, but got the task {config.task}: searchlight run --try-first -- "
            "python train.py"
        )
    objectives = config.objective
    plan = runner.plan(
        config.model_copy(update={"objective": objectives or ("metric:min",), "once": not config.search})
    )
    assert plan.command is not None
    # As the user gave it: a search takes the values of searched options out of the command.
    observation = observe(replace(plan.command, words=plan.config.command), plan.space, seconds)
    judged = [each.metric for each in plan.objectives] if objectives else []
    if not print_observation(create_report_console(), observation, judged):
        raise click.exceptions.Exit(1)


def audit_search(config: "SearchConfig", dry_run: bool, as_json: bool) -> None:
    """Audit the task of a search and print the findings. Exit with code 1 if the search must not start."""
    from searchlight.search.experiment import runner
    from searchlight.search.experiment.preflight import estimate, run_preflight
    from searchlight.search.reporting.console.preflight import print_audit
    from searchlight.search.reporting.console.tables import SafeStream, create_report_console

    if config.command:
        raise UsageError("--preflight must come with a task: it cannot look into the program of a command.")
    search_plan = runner.plan(config)
    audit = run_preflight(search_plan)
    cost = estimate(search_plan, audit)
    if as_json:
        output = {**audit, "estimate": asdict(cost) if cost else None}
        print(json.dumps(output), file=SafeStream(sys.stdout))
    else:
        if dry_run:
            print_plan(search_plan, cost)
        print_audit(create_report_console(), audit, cost)
    if audit["has_errors"]:
        raise click.exceptions.Exit(1)


def check_device(options: Mapping[str, Any], as_json: bool) -> None:
    """Check the task of a search on a simulated GPU, or at several sizes, and print the findings.

    Exit with code 1 if one is an error.
    """
    from searchlight.search.experiment import runner
    from searchlight.search.experiment.ladder import name_sizes
    from searchlight.search.experiment.preflight import check_on_gpu, check_sizes
    from searchlight.search.experiment.task_files import find_source
    from searchlight.search.reporting.console.preflight import print_audit
    from searchlight.search.reporting.console.tables import SafeStream, create_report_console

    config = load_config(_select_given(options), None)
    source = find_source(config)
    has_class = source.task_class is not None
    if config.sizes and not has_class:
        raise UsageError("--sizes must come with a task class: the modules of a function or a program are not known.")
    sizes, config = name_sizes(config, source).sizes, config.model_copy(update={"sizes": {}})
    if not has_class:  # a function, which needs an objective in a search, but not here
        config = config.model_copy(update={"objective": ("metric:min",), "once": True})
    plan = runner.plan(config)
    if plan.command is not None:
        raise UsageError("task must be a class or a function of Ray Train: check cannot look into a program.")
    audit = check_sizes(plan, sizes) if sizes else check_on_gpu(plan)
    if as_json:
        print(json.dumps(audit), file=SafeStream(sys.stdout))
    else:
        print_audit(create_report_console(), audit, None)
    if audit["has_errors"]:
        raise click.exceptions.Exit(1)


def resume_search(name: str, as_json: bool, options: Mapping[str, Any]) -> None:
    """Resume the search `name` with overridden options and print its result."""
    given = _select_given(options)
    from searchlight.search.experiment import ladder, runner  # imports the task's libraries

    location = parse_storage(given.pop("storage", None) or "runs") / name
    if list_sized_searches(location):
        if given:
            names = join_words([option_name(key) for key in given])
            raise UsageError(f"--resume must come without {names}, because {name} has several searches.")
        ladder.resume(location, show=partial(_print_ladder, location=location, as_json=as_json))
        return
    show = partial(_print_result, location=location, quiet=options["quiet"], as_json=as_json)
    runner.resume(name, location.parent, given, show=show)


def _print_ladder(result: "LadderResult", location: StoragePath, as_json: bool) -> None:
    """Print the result of searches at several sizes. Exit with code 1 if they show no law."""
    from searchlight.search.experiment.ladder import PAGE
    from searchlight.search.formatting import resume_command
    from searchlight.search.reporting.console.ladder import print_ladder
    from searchlight.search.reporting.console.tables import SafeStream, create_report_console

    if as_json:
        print(json.dumps(result.as_json()), file=SafeStream(sys.stdout))
    else:
        print_ladder(create_report_console(), result.ladder, result.left_out, result.stopped, location / PAGE)
    if result.is_interrupted:
        print(f"resume: {resume_command(location)}", file=SafeStream(sys.stderr))
    if result.ladder.law is None:
        raise click.exceptions.Exit(1)


def _print_result(result: "SearchResult", location: StoragePath, quiet: bool, as_json: bool) -> None:
    """Print the result. Exit with code 1 if no trial has one."""
    from searchlight.search.formatting import resume_command
    from searchlight.search.reporting.console.summary import print_summary
    from searchlight.search.reporting.console.tables import SafeStream, create_report_console
    from searchlight.search.study.trial import WITH_RESULT, get_outcome

    if as_json:
        print(json.dumps(result.as_json()), file=SafeStream(sys.stdout))
    else:
        print_summary(create_report_console(), result, location, quiet)
    unconfirmed = any(get_outcome(run) == "interrupted" for run in result.searched.confirming_runs)
    if (
        "interrupted" in result.outcomes or unconfirmed or not result.outcomes
    ):  # or it was stopped before its first trial
        print(f"resume: {resume_command(location)}", file=SafeStream(sys.stderr))
    if not {*WITH_RESULT} & {*result.outcomes}:
        raise click.exceptions.Exit(1)


def _select_given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given. Parse texts NAME=VALUE into a dict.

    Raises:
        UsageError: A text has no name, or two texts of an option give a name different values.
    """
    given = {key: value for key, value in options.items() if value not in (None, False, ())}
    pairs = {key: given[key] for key in ("resources", "set", "search", "trust", "believe") if key in given}
    if problems := [line for key, texts in pairs.items() for line in find_pair_problems(texts, option_name(key))]:
        raise UsageError(*problems)
    return given | {key: dict(text.split("=", 1) for text in texts) for key, texts in pairs.items()}
