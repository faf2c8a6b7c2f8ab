"""The confirming runs: finalists and the defaults under new seeds."""

from plotly.graph_objects import Figure

from searchlight.search.analysis.confirmation import Confirmation, describe_config
from searchlight.search.analysis.confirmed_best import (
    build_confirmation_rows,
    confirm,
    describe_noise,
    explain_no_confirmation,
    list_failed_runs,
)
from searchlight.search.formatting import join_words
from searchlight.search.reporting.html import theme
from searchlight.search.reporting.html.template import Section
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import ConfirmingRun, get_outcome

ROW = 46  # pixels of a config in the plot


def build(record: SearchRecord) -> Section | None:
    """Return the results of the confirming runs, with a plot for each objective, or None if there are too few."""
    confirmations = confirm(record)
    if not confirmations:
        reason = explain_no_confirmation(record)
        return Section("The confirmation", f"Confirmed: {reason}.") if reason else None
    first = confirmations[0]
    says = [f"{first.statement[0].upper()}{first.statement[1:]}."] if len(confirmations) == 1 else []
    trained = {ConfirmingRun.from_trial(run).trial for run in record.confirming_runs}
    what = "the best trials and the task's defaults" if None in trained else "the best trials"
    says.append(
        f"After the search, {what} were trained in full again, under seeds that the search had not used. "
        "Each point is such a run, at its best epoch. A line is the 90 % interval of the mean."
    )
    says += [describe_noise(each) for each in confirmations]
    if failed := list_failed_runs(record):
        outcomes = [f"{describe_config(run.user_attrs['confirms']['trial'])} {get_outcome(run)}" for run in failed]
        rule = "A config that diverged or was infeasible is not compared. A run that failed counts in no mean."
        says.append(f"Under a new seed, {join_words(outcomes)}. {rule}")
    figures = [_build_figure(each) for each in confirmations]
    table = build_confirmation_rows(first) if len(confirmations) == 1 else ()
    notes = "The model behind intervals and probabilities is described in docs/development/confirmation.md."
    return Section("The confirmation", "\n".join(says), figures, table, notes)


def _build_figure(confirmation: Confirmation) -> Figure:
    configs = confirmation.configs[::-1]  # plotly draws the first one lowest
    names = [describe_config(config.trial) for config in configs]
    values = [(x, y, seed) for y, config in zip(names, configs, strict=True) for seed, x in config.values.items()]
    gray = {"color": theme.GRAY, "size": 8, "opacity": 0.7}
    runs = theme.build_points(values, "one run", gray, "%{y}, seed %{customdata}<br>%{x:.4~g}")
    above = [config.interval[1] - config.mean for config in configs]
    below = [config.mean - config.interval[0] for config in configs]
    means = theme.build_points(
        [(config.mean, name, "") for name, config in zip(names, configs, strict=True)],
        "estimated mean and 90 % interval",
        {"color": theme.ACCENT, "size": 11, "symbol": "diamond"},
        "%{y}<br>%{x:.4~g}",
        error_x={"symmetric": False, "array": above, "arrayminus": below, "color": theme.ACCENT, "thickness": 2},
    )
    height = 110 + ROW * len(configs)
    return theme.build_figure(runs, means, x=confirmation.objective.metric, height=height)
