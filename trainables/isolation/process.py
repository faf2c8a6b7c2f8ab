"""A snapshot of a worker process before its first trial, which is restored between two trials."""

import gc
import random
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from searchlight.trainables import private_api
from searchlight.trainables.isolation.determinism import reserve_workspace
from searchlight.trainables.isolation.resource_leaks import ResourceLeaks, release_free_memory
from searchlight.trainables.isolation.settings import (
    SETTINGS,
    Setting,
    forget_safe_classes,
    forget_warnings,
    reset_singletons,
)
from searchlight.trainables.registry import OwnModules, load_class

UNREADABLE = object()


class ProcessSnapshot:
    """The state of this process after the import of a task. If the import fails, the trial reports the reason."""

    def __init__(self, reference: str) -> None:
        reserve_workspace()  # before the first trial, since any may be deterministic
        # Otherwise torch runs a function uncompiled without notice once it was compiled too often.
        private_api.dynamo_config.fail_on_recompile_limit_hit = True
        gc.freeze()  # the collector then ignores all that was imported, e.g. torch
        self._reference = reference
        self._own = OwnModules(reference)
        _seed()
        self._import_error = self._import_task()
        self._before = {name: _read(setting) for name, setting in SETTINGS.items()}
        self._leaks = ResourceLeaks()

    def restore(self) -> str:
        """Restore the state of the process. Nothing may hold an object of the trial any more.

        Return why the process must be replaced, or "".
        """
        self._restore_settings()  # first, since hooks and handlers hold objects of the trial
        forget_warnings()
        reset_singletons()
        torch.clear_autocast_cache()
        torch.compiler.reset()  # its limit of recompilations counts all trials together
        has_own_modules = self._own.forget()
        gc.collect()
        release_free_memory()
        problems = [self._leaks.find()]
        gc.freeze()
        if has_own_modules:
            forget_safe_classes()
            _seed()
            error = self._import_task()
            if error and not self._import_error:  # else the trial has reported that the import fails
                problems.append(f"{self._reference.partition(':')[0]} cannot be imported again: {error}")
        self._restore_settings()
        if changed := [name for name in SETTINGS if self._has_changed(name)]:
            problems.append(f"the trial changed {', '.join(changed)} permanently")
        _seed()
        return "; ".join(filter(None, problems))

    def _import_task(self) -> str:
        """Import the task and return the error, or ""."""
        try:
            load_class(self._reference)
        except (Exception, SystemExit) as error:  # a user's file may raise any error
            return f"{type(error).__name__}: {error}"
        return ""

    def _restore_settings(self) -> None:
        for name, setting in SETTINGS.items():
            if setting.write and self._has_changed(name):
                with suppress(Exception):  # each refuses in its own way; the settings are compared afterwards
                    setting.write(self._before[name])

    def _has_changed(self, name: str) -> bool:
        return self._before[name] is not UNREADABLE and _read(SETTINGS[name]) != self._before[name]


def _read(setting: Setting) -> Any:
    try:
        return setting.read()
    except Exception:  # torch and the system raise various types if a state cannot be read
        return UNREADABLE


def _seed() -> None:
    """Seed the generators for what the file of a task draws at its import. Every trial seeds its own."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
