"""Samplers that the user names: any class or function that takes a seed and gives a sampler of Optuna."""

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from searchlight.search.errors import UsageError
from searchlight.search.samplers.distinct import FIXED
from searchlight.search.task_source import locate_file, strip_sent_folder
from searchlight.trainables.registry import find_user_frame

REFERENCE = re.compile(r"(.+\.py|[A-Za-z_][\w.]*):[A-Za-z_]\w*")  # file.py:name or package.module:name


class OwnSampler(BaseSampler):
    """A sampler of the user, which is asked for whole trials only: Optuna's grid refuses points with some values.

    Values that a point of the user lacks are drawn at random. All values of a trial are drawn at once, so the sampler
    is shown the trial with what `before_trial` has stored in it.

    Raises:
        UsageError: In each call in which the sampler raises an error.
    """

    def __init__(self, sampler: BaseSampler, name: str) -> None:
        self.sampler = sampler
        self.name = name

    @contextmanager
    def _explain_error(self, trial: FrozenTrial) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the user's code may raise anything
            raise UsageError(
                f"--sampler must propose trial {trial.number}, but {self.name} raised {_describe(error)}"
            ) from error

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        with self._explain_error(trial):
            return {} if FIXED in trial.system_attrs else self.sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if FIXED in trial.system_attrs:
            return {}
        with self._explain_error(trial):
            return self.sampler.sample_relative(study, _refresh(study, trial), search_space)

    def sample_independent(self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any) -> Any:
        drawn_by = RandomSampler(seed=trial.number) if FIXED in trial.system_attrs else self.sampler
        with self._explain_error(trial):
            return drawn_by.sample_independent(study, _refresh(study, trial), param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        if FIXED not in trial.system_attrs:
            with self._explain_error(trial):
                self.sampler.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        if FIXED not in trial.system_attrs:
            with self._explain_error(trial):
                self.sampler.after_trial(study, trial, state, values)


def _refresh(study: Study, trial: FrozenTrial) -> FrozenTrial:
    """Return `trial` as the study has it by now."""
    return next(each for each in reversed(study.get_trials(deepcopy=False)) if each._trial_id == trial._trial_id)


def is_reference(name: str) -> bool:
    """Return whether `name` has the form of a sampler of the user: file.py:name or package.module:name."""
    return REFERENCE.fullmatch(name) is not None


def resolve_reference(name: str) -> str:
    """Return file.py:name with the absolute path of a file that exists, and other names unchanged."""
    path, _, function = name.rpartition(":")
    return strip_sent_folder(f"{locate_file(Path(path))}:{function}") if path.endswith(".py") else name


def create_own_sampler(name: str, seed: int) -> BaseSampler:
    """Return the sampler that the class or function `name` gives for `seed`.

    Raises:
        UsageError: It cannot be imported, it raises an error, or it gives something else.
    """
    module, _, function = name.rpartition(":")
    try:
        with redirect_stdout(sys.stderr):  # standard output may be used for JSON
            imported = _import_module(module)
            if (create := getattr(imported, function, None)) is None:
                raise UsageError(f"--sampler must name a function in {module}, but there is no {function!r}.")
            sampler = create(seed=seed)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise UsageError(
            f"--sampler must be callable as {function}(seed={seed}), but {name} raised {_describe(error)}"
        ) from error
    if not isinstance(sampler, BaseSampler):
        given = type(sampler).__name__
        raise UsageError(f"--sampler must give an optuna.samplers.BaseSampler, but {name} gave an object of {given}.")
    return OwnSampler(sampler, name)


def _describe(error: BaseException) -> str:
    """Return an `error` that is being handled, with the user's line that raised it."""
    where = find_user_frame(traceback.format_exc())
    return f"{type(error).__name__}: {error}{f', at {where}' if where else ''}"


def _import_module(text: str) -> ModuleType:
    """Import a file, which may import those next to it, or a module that is installed or in the current folder."""
    path = locate_file(Path(text)) if text.endswith(".py") else None
    if path is not None and not path.is_file():
        raise UsageError(f"--sampler must be in a file that exists, but there is no {path}.")
    folder = str(path.parent) if path is not None else os.getcwd()
    sys.path.insert(0, folder)  # as Python does for a script
    try:
        return importlib.import_module(text) if path is None else _execute_file(path)
    finally:
        sys.path.remove(folder)


def _execute_file(path: Path) -> ModuleType:
    """Execute a file as a module of a name that no other file has."""
    name = f"sampler_{re.sub(r'[^0-9A-Za-z]', '_', path.stem)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
