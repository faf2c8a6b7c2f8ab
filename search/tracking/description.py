"""The Markdown description of the parent run in MLflow."""

from collections.abc import Sequence
from typing import Any

from searchlight.search.analysis.result import SearchResult
from searchlight.search.formatting import format_command, format_value, resume_command
from searchlight.trainables.filesystem.paths import StoragePath
from searchlight.trainables.flatten import flatten


def format_commands(place: StoragePath, is_exhausted: bool = False) -> str:
    """Return the commands that repeat and resume the search at `place`, as Markdown."""
    more = "" if is_exhausted else ", or give it more `--trials`"
    return (
        f"Run it again with `{format_command('run')} --config search.yaml`; the file is among the artifacts. "
        f"Resume it{more}: `{resume_command(place)}`"
    )


def render_description(place: StoragePath, result: SearchResult) -> str:
    """Return the Markdown description of the parent run of the search at `place`."""
    lines = [f"- diverged: {of_a_precision}" for of_a_precision in result.divergence]
    lines += [f"- infeasible: {violated}" for violated in result.infeasibility]
    broken = ["\n".join(lines)] if lines else []
    if (best := result.best) is None:
        return "\n\n".join(["No trial was completed.", *broken, format_commands(place, result.is_exhausted)])
    searched, objectives = list(result.searched.about["searched"]), result.searched.objectives
    config = flatten(best.config)
    chosen = {name: config[name] for name in searched if name in config}
    confirmed = [f"**Confirmed:** {result.statement}."] if result.statement else []
    is_chosen = result.confirmation is not None  # then others may have better values
    label = f"{'' if is_chosen else 'Best '}{objectives[0].metric}"
    parts = [
        *confirmed,
        # The UI folds a description after a few lines, so the best trial comes first.
        f"**{label}: {format_value(best.value)}** (trial {best.trial_id}): "
        + ", ".join(f"`{name}` {format_value(value)}" for name, value in chosen.items()),
        _render_table([("parameter", "value"), *(chosen | config).items()]),
        *broken,
        format_commands(place, result.is_exhausted),
    ]
    if result.front:
        rows: list[Sequence[Any]] = [("trial", *objectives, *searched)]
        for trial in result.front:
            config = flatten(trial.config)
            values = [*trial.values.values(), *(config.get(name, "") for name in searched)]
            rows.append((trial.trial_id, *map(format_value, values)))
        parts += ["**Pareto front**", _render_table(rows)]  # last, since MLflow truncates long descriptions
    return "\n\n".join(parts)


def _render_table(rows: Sequence[Sequence[Any]]) -> str:
    """Return a Markdown table. The first row is its head."""
    head, *body = ([" ".join(str(cell).split()).replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])
