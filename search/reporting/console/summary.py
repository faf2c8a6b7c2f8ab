"""The summary at the end of a search: its result, where to view it, and how to continue."""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from optuna.trial import FrozenTrial
from rich.console import Console

from searchlight.search.analysis.best_trials import (
    BestTrial,
    compare_at_equal_epochs,
    describe_metrics,
    describe_no_effect,
    find_ties,
    group_by_reason,
)
from searchlight.search.analysis.confirmation import Confirmation, describe_config
from searchlight.search.analysis.confirmed_best import (
    build_confirmation_rows,
    confirm,
    describe_noise,
    explain_no_confirmation,
    get_confirmed_config,
    list_failed_runs,
)
from searchlight.search.analysis.infeasibility import describe_nearest, list_split_trials
from searchlight.search.analysis.ranking import trial_rows
from searchlight.search.command.functions import name_called_function
from searchlight.search.command.options import list_words
from searchlight.search.config import SearchConfig
from searchlight.search.formatting import (
    format_command,
    format_duration,
    format_interval,
    format_trials,
    format_value,
    pluralize,
    resume_command,
)
from searchlight.search.option import translate_retired_keys
from searchlight.search.reporting.console.tables import build_details, build_table, list_omitted_columns, print_line
from searchlight.search.schedulers.confirmation import FEWEST_RUNS
from searchlight.search.schedulers.registry import SCHEDULERS
from searchlight.search.space.function_config import parse_fixed_values
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import ConfirmingRun, get_best_epoch, get_best_value, get_outcome
from searchlight.search.tracking.run_content import AMONG_TRAININGS
from searchlight.search.tracking.uri import URI, redact
from searchlight.trainables.command.trial_folder import OUTPUT, TRIALS
from searchlight.trainables.filesystem.paths import StoragePath
from searchlight.trainables.flatten import flatten

if TYPE_CHECKING:
    from searchlight.search.analysis.result import SearchResult

OF_A_RUN = ("workers", "cpus_per_worker", "gpus_per_worker", "seed")  # options that are valid with --once
RESULT_FILES = ("best.yaml", "trials.parquet", "search.yaml", "environment.json", "preflight.json")
FAILURES = 3  # kinds of failures in the summary; the report has all


def print_trials(console: Console, record: SearchRecord) -> None:
    """Print the table of the trials, with all columns if `console` is not a terminal."""
    width = console.width if console.is_terminal else None
    rows = trial_rows(record.trials, record.objectives)
    table = build_table(rows, width)
    console.print(table)
    if omitted := list_omitted_columns(table, rows):
        line = f"not shown in {width} columns: {', '.join(omitted)}; report.html has them, and so has a wider terminal"
        console.print(line, highlight=False, markup=False, style="dim")


def print_summary(console: Console, result: "SearchResult", location: StoragePath, quiet: bool = False) -> None:
    """Print the result of a search. `quiet` omits the table of all trials and their divergence."""
    record, say = result.searched, partial(print_line, console)
    if not quiet:
        print_trials(console, record)
        say("")
    counts = ", ".join(f"{count} {outcome}" for outcome, count in result.outcomes.items())
    stopped = f", stopped: {result.stopped}" if result.stopped else ""
    say(f"{counts} in {format_duration(result.seconds)}{stopped}")
    for divergence in () if quiet else result.divergence:
        say(f"diverged: {divergence}")
    for violated in () if quiet else result.infeasibility:
        say(f"infeasible: {violated}")
    if no_effect := describe_no_effect(record.trials):
        say(no_effect)
    if nearest := describe_nearest(record.trials, record.objective):
        say(nearest)
    if not quiet and (split := list_split_trials(record.trials)):
        say(f"out of memory, then smaller micro-batches for the same updates: {'; '.join(split)}")
    failed = [trial for trial in record.trials if get_outcome(trial) == "failed"]
    for alike in group_by_reason(failed)[:FAILURES]:
        numbers, reason = [trial.number for trial in alike], alike[0].user_attrs.get("reason", "")
        if reason not in result.stopped:  # the first line has it otherwise
            say(f"failed: {format_trials(numbers)}: {reason}")
    if failed:
        say(f"tracebacks: {location / 'errors'}")
    trials = {trial.number: trial for trial in record.trials}
    if result.best is not None:
        if result.confirmation is None:
            _print_best(console, record, trials[result.best.trial_id])
        else:
            _print_confirmed(console, record, result.confirmation, result.best)
        for several in result.confirmations if result.confirmation is None else ():
            _print_confirmed_configs(console, several)
        if result.unconfirmed:
            say(f"confirmed: {result.unconfirmed}")
        for trial in list_failed_runs(record):
            run = ConfirmingRun.from_trial(trial)
            say(f"confirmation: {describe_config(run.trial)} {get_outcome(trial)} under seed {run.seed}")
        origin = "" if result.best.run is None else f", of confirming run {result.best.run}"
        if record.about["config"].get("command"):
            say(f"output: {location / TRIALS / str(result.best.trial_id) / OUTPUT}")
        else:
            say(f"checkpoint: {result.best.checkpoint or 'reported without one'}{origin}")
    if result.front:
        say(f"front: {len(result.front)} trials{'' if quiet else ', marked *'}")
    for line in view_instructions(result.mlflow, location, record.about["config"].get("tracker", "mlflow")):
        say(f"look: {line}")
    if names := list_result_files(location):
        say(f"files: {', '.join(names)} in {location}")
    if "model" in result.mlflow:
        say(f"load: mlflow.pyfunc.load_model({result.mlflow['model']!r})")
    if not record.about["config"]["once"]:
        _print_next_commands(console, result, location)


def _print_next_commands(console: Console, result: "SearchResult", location: StoragePath) -> None:
    """Print the commands with which a user may go on."""
    record, say = result.searched, partial(print_line, console)
    if {*result.outcomes} == {"failed"}:
        say("next: correct the task, and begin a new search: all trials failed")
    elif result.outcomes and "interrupted" not in result.outcomes and not result.is_exhausted:
        say(f"more: {resume_command(location)} --trials {2 * len(record.trials)}")
    if result.best is not None and _is_unconfirmed(result):
        say(f"confirm: {resume_command(location)} --confirm {FEWEST_RUNS}")
    if result.best is not None:
        best = next((trial for trial in record.trials if trial.number == result.best.trial_id), None)
        say(f"train: {retrain_command(record, best)}")


def _is_unconfirmed(result: "SearchResult") -> bool:
    """Return whether a search that would have been confirmed was stopped before, by a target or a spent budget."""
    config = result.searched.about["config"]
    is_confirmable = config.get("confirm", 0) != 0 and not SCHEDULERS[config["scheduler"]].makes_copies
    can_confirm = is_confirmable and len(result.searched.trials) > 1
    is_over = result.stopped and "interrupted" not in result.reasons
    return bool(can_confirm and is_over and not result.searched.confirming_runs)


def _print_best(console: Console, record: SearchRecord, best: FrozenTrial) -> None:
    """Print the best trial with its searched parameters, next to the defaults if they were tried."""
    objective, defaults = record.objective, record.default_trial
    value, epoch = format_value(get_best_value(best, objective)), get_best_epoch(best, objective)
    others = None if defaults is None or defaults.number == best.number else defaults
    which = f"trial {best.number}{'' if others or defaults is None else ' with the defaults'}"
    ties = find_ties(record.trials, best, objective)
    same = f", the same in {format_trials(ties)}" if ties else ""
    beside, lines = describe_metrics(best, objective, record.about.get("units", {}))
    line = f"best: {which}, {objective.metric} {value}{beside} after epoch {epoch}{same}"
    print_line(console, line, style="bold")
    for line in lines:
        print_line(console, f"  {line}")
    _print_parameters(console, record, best)


def _print_parameters(console: Console, record: SearchRecord, best: FrozenTrial) -> None:
    """Print the parameters of a trial, next to the defaults if they were tried."""
    objective, defaults = record.objective, record.default_trial
    others = None if defaults is None or defaults.number == best.number else defaults
    rows = [["", f"trial {best.number}", *(["defaults"] if others else [])]]
    if others is not None and (compared := compare_at_equal_epochs(best, others, objective)) is not None:
        epoch, *values = compared
        rows.append([f"  {objective.metric} by epoch {epoch}", *map(format_value, values)])
    for name, chosen in best.params.items():
        values = [chosen, *([others.params.get(name, "-")] if others else [])]
        rows.append([f"  {name}", *map(format_value, values)])
    console.print(build_details(rows, has_head=others is not None), soft_wrap=True)


def _print_confirmed(console: Console, record: SearchRecord, confirmation: Confirmation, best: BestTrial) -> None:
    """Print the confirmed trial with its estimate, all compared configs, and its parameters."""
    config, metric = get_confirmed_config(confirmation), confirmation.objective.metric
    unit = dict(record.about.get("units", {})).get(metric, "")
    mean = f"{format_value(config.mean)}{f' ({unit})' if unit else ''}"
    seeds = pluralize(len(config.values), "new seed")
    found = f"{metric} {mean} estimated over {seeds}, 90 % interval {format_interval(*config.interval)}"
    print_line(console, f"best: {describe_config(config.trial)}, {found}", style="bold")
    lines = [f"  {confirmation.statement}"]
    trial = next((trial for trial in record.trials if trial.number == best.trial_id), None)
    if trial is not None:  # None: the search did not try the defaults, which are the answer
        epoch = get_best_epoch(trial, confirmation.objective)
        beside, others = describe_metrics(trial, confirmation.objective, record.about.get("units", {}))
        subject = "it" if config.trial is not None else f"trial {trial.number}"
        lines.append(f"  in the search {subject} had {format_value(best.value)}{beside} after epoch {epoch}")
        lines += [f"  {line}" for line in others]
    for line in (*lines, f"  {describe_noise(confirmation)}"):
        print_line(console, line)
    _print_confirmed_configs(console, confirmation)
    if trial is not None and config.trial is not None:
        _print_parameters(console, record, trial)


def print_confirmations(console: Console, record: SearchRecord) -> None:
    """Print the results of the confirming runs of a search, if there are enough of them."""
    confirmations = confirm(record)
    if reason := explain_no_confirmation(record):
        print_line(console, f"confirmed: {reason}")
    for confirmation in confirmations:
        if len(confirmations) == 1:
            print_line(console, f"confirmed: {confirmation.statement}")
        _print_confirmed_configs(console, confirmation)


def _print_confirmed_configs(console: Console, confirmation: Confirmation) -> None:
    """Print a row for each config: its mean and its difference from the defaults, with intervals."""
    head, *rows = build_confirmation_rows(confirmation)
    console.print(build_details([head, *([f"  {label}", *cells] for label, *cells in rows)]), soft_wrap=True)


def view_instructions(mlflow: Mapping[str, str], location: StoragePath, tracker: str = "mlflow") -> Iterator[str]:
    """Yield the report, and the address of the search in MLflow or the command that serves it or another `tracker`."""
    page = location / "report.html"
    with suppress(OSError):  # an unavailable bucket, which was reported before
        if page.exists():
            yield str(page)
    if tracker == "tensorboard":
        yield f"tensorboard --logdir {shlex.quote(str(location / 'tensorboard'))}"
    elif tracker == "wandb":
        yield f"wandb sync {shlex.quote(str(location / 'wandb'))}/offline-run-*"
    if not mlflow:
        return
    uri = redact(mlflow["tracking_uri"])
    parts = urlsplit(uri)
    path = f"#/experiments/{mlflow['experiment_id']}/runs/{mlflow['run_id']}?{urlencode(AMONG_TRAININGS)}"
    run = path if mlflow["run_id"] else ""  # MLflow has not answered yet
    if parts.scheme in ("http", "https"):
        yield f"{uri.rstrip('/')}/{run}"
        return
    program = Path(sys.executable).with_name("mlflow")
    command = shlex.quote(str(program)) if program.exists() else f"{shlex.quote(sys.executable)} -m mlflow"
    # As a variable, since it may hold a password.
    store = f'"${URI}"' if redact(os.environ.get(URI, "")) == uri else shlex.quote(uri)
    yield f"{command} ui --backend-store-uri {store}, then http://127.0.0.1:5000/{run}"


def list_result_files(location: StoragePath) -> list[str]:
    """Return the names of the other files with results of the search at `location`. An unavailable bucket has none."""
    with suppress(OSError):
        return [name for name in RESULT_FILES if (location / name).exists()]
    return []


def retrain_command(record: SearchRecord, best: FrozenTrial | None) -> str:
    """Return the command that trains the config of `best` again, or the task's defaults if it is None."""
    config: Mapping[str, Any] = translate_retired_keys(record.about["config"])
    path, _, label = config["task"].rpartition(":")
    relative = os.path.relpath(path) if path else ""
    task = f"{path if relative.startswith('..') else relative}:{label}" if path else config["task"]
    whole, params = (flatten(best.user_attrs["config"]), best.params) if best else ({}, {})
    searched = {name: whole.get(name, value) for name, value in params.items()}
    command = config.get("command") or ()
    if command:  # a text that looks like a number needs quotes
        read = parse_fixed_values(searched)
        searched = {name: value if value == read[name] else repr(value) for name, value in searched.items()}
    values = {**config["set"], **searched}
    if best and (added := record.count_added_epochs(best.number)):
        values["epochs"] = whole["epochs"] + added
    function = name_called_function(command)
    words = [*shlex.split(format_command("run")), *([] if command and not function else [function or task]), "--once"]
    for metric in config["objective"]:
        words += ["--objective", metric]
    if config["experiment"] != (label or task):
        words += ["--experiment", config["experiment"]]
    for name in OF_A_RUN:
        if config.get(name) not in (None, "", SearchConfig.model_fields[name].default):
            words += [f"--{name.replace('_', '-')}", str(config[name])]
    if config["storage"] != str(Path("runs").absolute()):
        words += ["--storage", config["storage"]]
    for name, value in values.items():
        words += ["--set", f"{name}={'null' if value is None else value}"]
    if command:
        words += [*list_words(config), *([] if function else ["--", *command])]
    return shlex.join(words)
