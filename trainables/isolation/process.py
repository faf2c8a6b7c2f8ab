"""What a process was like before its first trial, and the way back to it between two trials."""

import gc
import random
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from trainables.isolation.process_settings import PROCESS, Setting, forget_warnings
from trainables.isolation.resource_leaks import ResourceLeaks, release_free_memory
from trainables.isolation.torch_settings import TORCH
from trainables.registry import OwnModules, load_class

SETTINGS = {**TORCH, **PROCESS}
UNREADABLE = object()


class ProcessSnapshot:
    """This process as it is once it has imported a task: as every trial is to find it.

    Args:
        reference: The task as "module:Class". One that cannot be imported is no error here: the trial says why.
    """

    def __init__(self, reference: str) -> None:
        # The first optimizer imports it anyway. Here, what it brings does not have to be gone through for garbage.
        import torch._dynamo.config
        import torch._functorch.config
        import torch._inductor.config

        # Otherwise what is compiled too often runs uncompiled from then on, and nobody is told.
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        gc.freeze()  # between trials only what came later is looked through, not all of torch
        self._reference = reference
        self._own = OwnModules(reference)
        self._imported = False
        _seed()
        with suppress(Exception, SystemExit):  # whatever a user's file raises is raised again by the trial
            load_class(reference)
            self._imported = True
        self._settings = {name: _read(setting) for name, setting in SETTINGS.items()}
        self._leftovers = ResourceLeaks()

    def restore(self) -> str:
        """Make the process again what it was. Nothing may hold on to the trial any more.

        Returns:
            What is different all the same, or "".
        """
        self._restore_settings()  # first: hooks and handlers hold on to what the trial made
        forget_warnings()
        torch.clear_autocast_cache()
        torch.compiler.reset()  # its limit of recompilations counts all trials together
        own = self._own.forget()
        gc.collect()
        release_free_memory()
        left = self._leftovers.find()
        gc.freeze()
        problem = self._import_again() if own else ""
        different = self._restore_settings()
        _seed()
        return "; ".join(part for part in (left, problem, different) if part)

    def _import_again(self) -> str:
        _seed()
        try:
            load_class(self._reference)
        # Whatever a user's file raises: it may not have been made to be imported twice.
        except (Exception, SystemExit) as error:
            if not self._imported:  # nor could it be the first time, and the trial has said why
                return ""
            return f"{self._reference.partition(':')[0]} cannot be imported again: {type(error).__name__}: {error}"
        return ""

    def _restore_settings(self) -> str:
        different = []
        for name, setting in SETTINGS.items():
            before = self._settings[name]
            if _read(setting) == before or before is UNREADABLE:
                continue
            with suppress(Exception):  # they say in many ways that they cannot be changed; what counts is whether
                setting.write(before)
            if _read(setting) != before:
                different.append(name)
        return f"the trial changed {', '.join(different)} for good" if different else ""


def _read(setting: Setting) -> Any:
    try:
        return setting.read()
    except Exception:  # settings can be brought into a state that torch refuses to tell
        return UNREADABLE


def _seed() -> None:
    """Every trial seeds its own generators; this is for what a task's file draws while it is imported."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
