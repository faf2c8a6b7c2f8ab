"""The Markdown on the parent run in MLflow."""

from collections.abc import Sequence
from typing import Any

from search.analysis.best_trials import BestTrial, ParetoTrial
from search.analysis.divergence import Divergence
from search.config.flatten import flatten
from search.config.objectives import Objective
from search.formatting import format_value, resume_command
from trainables.filesystem.paths import StoragePath


def format_commands(place: StoragePath) -> str:
    """How to run the search at `place` again, and how to go on with it, as Markdown."""
    return (
        "Run it again with `python search/run.py --config search.yaml`; the file is among the artifacts. "
        f"Go on with it, or give it more `--trials`: `{resume_command(place)}`"
    )


def render_description(
    place: StoragePath,
    searched: Sequence[str],
    objectives: Sequence[Objective],
    best: BestTrial | None,
    front: Sequence[ParetoTrial] | None,
    divergence: Sequence[Divergence],
) -> str:
    """The Markdown on the parent run in MLflow.

    Args:
        place: Of the search.
        searched: The names of its parameters.
        objectives: The first leads.
    """
    lines = "\n".join(f"- diverged: {of_a_precision}" for of_a_precision in divergence)
    diverged = [lines] if lines else []
    if best is None:
        return "\n\n".join(["No trial was completed.", *diverged, format_commands(place)])
    config = flatten(best.config)
    chosen = {name: config[name] for name in searched if name in config}
    told = [
        # What stands first is seen at once: the UI folds a note after a few lines.
        f"**Best {objectives[0].metric}: {format_value(best.value)}** (trial {best.trial_id}): "
        + ", ".join(f"`{name}` {format_value(value)}" for name, value in chosen.items()),
        _render_table([("parameter", "value"), *(chosen | config).items()]),
        *diverged,
        format_commands(place),
    ]
    if front:
        rows: list[Sequence[Any]] = [("trial", *objectives, *searched)]
        for trial in front:
            config = flatten(trial.config)
            values = [*trial.values.values(), *(config.get(name, "") for name in searched)]
            rows.append((trial.trial_id, *map(format_value, values)))
        told += ["**Pareto front**", _render_table(rows)]  # last: it may be longer than what MLflow keeps of a note
    return "\n\n".join(told)


def _render_table(rows: Sequence[Sequence[Any]]) -> str:
    """A table; the first row is its head."""
    head, *body = ([" ".join(str(cell).split()).replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])
