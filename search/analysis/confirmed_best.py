"""What the confirming runs of a search show, and the best trial by them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from optuna.trial import FrozenTrial

from searchlight.search.analysis.best_trials import BestTrial, find_best
from searchlight.search.analysis.confirmation import (
    Confirmation,
    ConfirmedConfig,
    describe_config,
    estimate_confirmation,
)
from searchlight.search.formatting import format_interval, format_percent, format_value
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import (
    WORSE,
    ConfirmingRun,
    get_best_epoch,
    get_best_value,
    get_outcome,
    get_reports,
    ignore_seeds,
    intermediate_values,
    objective_values,
)

INTERVAL = "90 % interval"
SEED_IGNORED = "nothing, because the task ignores its seed: the runs of a config are equal under different seeds"


def confirm(record: SearchRecord) -> list[Confirmation]:
    """Return what the confirming runs show of each objective.

    The list is empty if there are too few runs, or if the task ignores its seed, because equal runs have no spread. The
    value of a run is that of its best epoch by the first objective, as it is for a trial of the search.
    """
    if ignore_seeds(record.confirming_runs):
        return []
    found, broken = [], _find_broken_configs(record)
    diverged, infeasible = (tuple(config for config in broken if broken[config] == outcome) for outcome in WORSE)
    for index, objective in enumerate(record.objectives):
        values: dict[int | None, dict[int, float]] = {}
        for trial in _select_completed(record.confirming_runs):
            run, point = ConfirmingRun.from_trial(trial), objective_values(trial, record.objectives)
            assert point is not None  # a completed run has reported
            values.setdefault(run.trial, {})[run.seed] = point[index]
        confirmation = estimate_confirmation(values, objective, broken)
        if confirmation is None:
            return []
        found.append(replace(confirmation, diverged=diverged, infeasible=infeasible))
    return found


def explain_no_confirmation(record: SearchRecord) -> str:
    """Return why the confirming runs confirm nothing, or "" if they do, or if there are too few of them."""
    return SEED_IGNORED if ignore_seeds(record.confirming_runs) else ""


def get_confirmed_config(confirmation: Confirmation) -> ConfirmedConfig:
    """Return the config to use: that of the chosen finalist, or the defaults."""
    return next(config for config in confirmation.configs if config.trial == confirmation.chosen)


def find_confirmed_best(record: SearchRecord, confirmations: Sequence[Confirmation]) -> BestTrial | None:
    """Return the confirmed trial. Where nothing was confirmed, or several objectives were, return the best trial.

    The best trial is one that neither diverged nor was infeasible under a new seed, as long as there is one.
    Config and checkpoint are those of the best run that confirms the trial, the value is that of the trial itself. The
    defaults are the trial that the search tried first, or the best run of them if it did not try them.
    """
    objective = record.objective
    if len(confirmations) != 1:
        broken = _find_broken_configs(record)
        reliable = [trial for trial in record.trials if trial.number not in broken]
        return find_best(reliable, objective) or find_best(record.trials, objective)
    chosen = confirmations[0].chosen
    runs = _select_completed(record.confirming_runs)
    own = [run for run in runs if ConfirmingRun.from_trial(run).trial == chosen]
    run = objective.best(own, key=lambda run: get_best_value(run, objective))
    by_number = {trial.number: trial for trial in record.trials}
    trial = record.default_trial if chosen is None else by_number[chosen]
    if trial is None or not intermediate_values(trial):
        trial = run
    report = get_reports(run)[get_best_epoch(run, objective)]
    config: dict[str, Any] = run.user_attrs["config"]
    return BestTrial(trial.number, get_best_value(trial, objective), config, report["checkpoint"], run.number)


def list_failed_runs(record: SearchRecord) -> list[FrozenTrial]:
    """Return the confirming runs that diverged, were infeasible or failed."""
    return [run for run in record.confirming_runs if get_outcome(run) in (*WORSE, "failed")]


def _find_broken_configs(record: SearchRecord) -> dict[int | None, str]:
    """Return the configs of which a confirming run diverged or was infeasible, in order, and which of these it was."""
    broken = [run for run in record.confirming_runs if get_outcome(run) in WORSE]  # another run may have failed
    outcomes = {ConfirmingRun.from_trial(run).trial: get_outcome(run) for run in broken}
    return dict(sorted(outcomes.items(), key=lambda item: -1 if item[0] is None else item[0]))


def describe_noise(confirmation: Confirmation) -> str:
    """Return a sentence with the noise of one run and the smallest difference that this number of runs can show."""
    metric, noise = confirmation.objective.metric, confirmation.noise
    return (
        f"{metric} of one config varies by {noise:.2g} between seeds (standard deviation): "
        f"this number of runs can show a difference of {confirmation.detectable_difference:.2g} or more."
    )


def build_confirmation_rows(confirmation: Confirmation) -> list[list[str]]:
    """Return a table of the configs, the head first. Columns that no config has a value for are left out.

    The values are estimates, which lie between the mean of a config's runs and that of all configs.
    """
    head = ["", "seeds", f"estimated {confirmation.objective.metric}", INTERVAL, "gain over defaults", INTERVAL]
    rows = [[*head, "P(best)", "P(beats defaults)"]]
    for config in confirmation.configs:
        beats = config.probability_beats_defaults
        rows.append(
            [
                describe_config(config.trial),
                str(len(config.values)),
                format_value(config.mean),
                format_interval(*config.interval),
                "-" if config.difference is None else format_value(config.difference),
                "-" if config.difference_interval is None else format_interval(*config.difference_interval),
                format_percent(config.probability_best),
                "-" if beats is None else format_percent(beats),
            ]
        )
    columns = [column for column in zip(*rows, strict=True) if {*column[1:]} != {"-"}]
    return [list(row) for row in zip(*columns, strict=True)]


def _select_completed(runs: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    return [run for run in runs if get_outcome(run) == "completed" and intermediate_values(run)]
