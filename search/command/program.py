"""How the trials of a search run its command, as far as it is known before Ray starts."""

import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution

from searchlight.search.command.destinations import resolve_parameters
from searchlight.search.command.flags import Parameter, normalize
from searchlight.search.command.functions import name_called_function
from searchlight.search.command.options import LAUNCHERS, CommandOptions
from searchlight.search.command.targets import SEED, propose_seeds
from searchlight.search.command.try_first import choose_middle
from searchlight.search.errors import UsageError, suggest_nearest
from searchlight.search.space.function_config import parse_fixed_values
from searchlight.search.space.search_space import Space
from searchlight.search.task_source import locate_folder
from searchlight.trainables.command.settings import CommandSettings
from searchlight.trainables.command.template import PLACES, fill, find_placeholders, format_value
from searchlight.trainables.command.trial_folder import TrialFolder


def build_settings(
    options: CommandOptions, space: Space, fixed: Mapping[str, Any], objectives: Sequence[str], trials: str
) -> CommandSettings:
    """Return how the trials of a search run its command.

    Args:
        fixed: The values that the user gave by --set.
        objectives: The metrics that are judged.
        trials: The folder for the folders of trials.

    Raises:
        UsageError: There is no such program, or it does not take a parameter. The message has a line per problem.
    """
    folder = locate_folder(Path(options.folder))
    if not folder.is_dir():
        raise UsageError(f"the command must run in the folder that it was given in, but there is no {folder}.")
    find_program(options.command, folder)
    found = resolve_parameters(options, [*_list_parameters(space, fixed)], folder)
    return CommandSettings(
        words=found.words or options.command,
        folder=str(folder),
        trial_root=trials,
        objectives=tuple(objectives),
        flags=found.flags,
        files=found.files,
        patches=found.patches,
        defaults=found.defaults,
        metrics=options.metric,
        metrics_file=options.metrics_file,
        every=options.every,
        resume_with=options.resume_words,
        stop_grace=options.stop_grace,
        link=options.cwd == "trial",
        warm=not options.cold,
    )


def _list_parameters(space: Space, fixed: Mapping[str, Any]) -> Iterator[Parameter]:
    for parameter in space.parameters:
        searched: Any = parameter.distribution
        is_choice = isinstance(searched, CategoricalDistribution)
        yield Parameter(parameter.name, "--search", searched.choices if is_choice else [searched.low, searched.high])
    for name, value in parse_fixed_values(fixed).items():
        yield Parameter(name, "--set", [value])


def takes_seed(settings: CommandSettings) -> bool:
    """Return whether the program gets the seed of a trial."""
    targets = {target.parameter for target in (*settings.files, *settings.patches)}
    return SEED in {*targets, *settings.flags, *find_placeholders(settings.words)}


def explain_seed(settings: CommandSettings) -> str:
    """Return how the program could get the seed of a trial."""
    if called := name_called_function(settings.words):
        return f"Let {called} take an argument seed"
    if settings.link and (patches := propose_seeds(settings.words, Path(settings.folder), settings.patches)):
        return f"Give {patches} if the code decides it, or --seed-flag NAME if an option does"
    return "Name {seed} in it, give --seed-flag NAME, or let its code take searchlight.params()['seed']"


def describe_choices(settings: CommandSettings, scheduler: str) -> tuple[str, ...]:
    """Return a line for each restriction of a search by its command. `scheduler` is the name of the scheduler."""
    lines = []
    if not settings.can_resume:
        lines.append(
            f"scheduler {scheduler}: no trial pauses, because the command cannot resume without {{checkpoint_dir}} or "
            "--resume-with"
        )
    if not takes_seed(settings):
        lines.append(f"no confirming runs: the command takes no seed. {explain_seed(settings)}")
    return tuple(lines)


def describe_first_trial(settings: CommandSettings, space: Space, first: Mapping[str, Any]) -> Iterator[str]:
    """Yield the command line of trial 0, and what it changes in files.

    A parameter that has no value in the point `first` has the middle of its range.
    """
    values = space.fixed_values()
    values |= space.choose(lambda each: first.get(each.name, choose_middle(each.distribution)))
    folder = TrialFolder(settings, 0)
    places = {name: f"{{{name}}}" for name in PLACES} | {"trial": "0", "trial_dir": str(folder.path)}
    places |= {"checkpoint_dir": str(folder.checkpoints)}
    places |= {name: str(values[name]) for name in ("seed", "epochs") if values.get(name) is not None}
    yield shlex.join(fill(settings, values, places).argv)
    for target in (*settings.files, *settings.patches):
        yield f"{target.path}: {target.key} is {format_value(values[target.parameter])}"
    placed = {target.parameter for target in (*settings.files, *settings.patches)} | {*settings.flags}
    placed = {*map(normalize, (*placed, *find_placeholders(settings.words)))}
    others = [each.name for each in space.parameters if normalize(each.name) not in placed]
    if given := [f"{name}={format_value(values[name])}" for name in others if name in values]:
        yield f"{name_called_function(settings.words) or 'searchlight.params()'} has {', '.join(given)}"


def find_program(words: Sequence[str], folder: Path) -> str:
    """Return the path of the program that a command starts in `folder`.

    Raises:
        UsageError: There is none, or no script of the name that it must have.
    """
    if found := shutil.which(words[0]):
        scripts = [word for word in words if re.fullmatch(r"[^-=*{}\s][^=*{}\s]*\.(py|sh)", word)]
        if LAUNCHERS.fullmatch(Path(words[0]).name) and scripts and not (folder / scripts[0]).exists():
            near = suggest_nearest(scripts[0], [path.name for path in folder.glob(f"*{Path(scripts[0]).suffix}")])
            raise UsageError(f"the command must name a script, but there is no {folder / scripts[0]}. {near}".rstrip())
        return found
    remedy = "Name one that is installed, or give its path."
    if words[0].endswith(".py"):
        remedy = f"Use -- python {shlex.join(words)}"
    elif re.fullmatch(r"python[\d.]*", words[0]):
        remedy = f"Use {shlex.quote(sys.executable)}."
    raise UsageError(f"the command must begin with a program, but there is no {words[0]}. {remedy}")
