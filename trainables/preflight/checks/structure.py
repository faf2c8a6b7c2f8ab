"""The check of modules and optimizers: each trainable parameter is in one module and in one optimizer, in fp32."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from searchlight.trainables.preflight.findings import Finding, Kind, declare_kinds, make_finding, make_group
from searchlight.trainables.preflight.observation import FIRST_WINDOWS, Check, ObservedTrial
from searchlight.trainables.task import Task
from searchlight.trainables.update.accumulation import find_leaves
from searchlight.trainables.update.parameters import get_named_parameters, get_parameters, is_sharded

declare_kinds(
    "Gradient flow",
    Kind("nothing-to-train", "error", "Set requires_grad=True, and give the parameters to an optimizer."),
    Kind("no-optimizer", "error", "Give the parameter to an optimizer, or set requires_grad=False."),
    Kind("two-optimizers", "error", "Give each parameter to one optimizer only."),
    Kind(
        "created-after-optimizer",
        "error",
        "Create all parameters in build before the optimizer; initialize lazy ones with a first batch there.",
    ),
    Kind(
        "outside-modules", "warning", "Add it to self.modules: else it is in no checkpoint, and ranks do not share it."
    ),
    Kind(
        "trained-by-none",
        "warning",
        "Put layers of a list into nn.ModuleList, and each module into self.modules. Freeze what is not to be trained.",
    ),
    Kind("half-precision-parameter", "error", "Keep parameters in fp32: module.float(). Autocast does the rest."),
)


class Structure(Check):
    """Looks at modules and optimizers after the last window, and at what the losses of the first ones depend on."""

    def __init__(self) -> None:
        self._loose: dict[str, dict[int, Tensor]] = {}  # by update: parameters that no module and no optimizer has

    def on_loss(self, trial: ObservedTrial, update: str, returned: Any) -> None:
        if trial.windows >= FIRST_WINDOWS or not isinstance(returned, tuple) or not isinstance(returned[0], Tensor):
            return
        parameters = get_named_parameters(trial.task.modules).values()
        if is_sharded(parameters):  # the leaves are the gathered weights
            return
        known = {id(p) for p in parameters}
        known |= {id(p) for optimizer in trial.task.optimizers.values() for p in get_parameters(optimizer)}
        variables = (leaf.variable for leaf in find_leaves(returned[0]))
        loose = {id(each): each for each in variables if isinstance(each, nn.Parameter) and id(each) not in known}
        before = self._loose.get(update, loose)  # what one loss creates for itself is in no other one
        self._loose[update] = {key: each for key, each in loose.items() if key in before}

    def find(self, trial: ObservedTrial) -> Iterator[Finding]:
        late = _find_late_parameters(trial)
        subjects = {finding.subject for finding in late}
        yield from (finding for finding in find_structure(trial.task) if finding.subject not in subjects)
        yield from late
        for update, loose in self._loose.items() if not late else ():
            if loose:
                figure = f"its loss has a gradient for {len(loose)} parameters that no module and no optimizer has"
                shapes = ", ".join(str(tuple(parameter.shape)) for parameter in [*loose.values()][:3])
                yield make_finding("trained-by-none", f"update {update!r}", f"{figure}, of shape {shapes}")


def find_structure(task: Task[Any]) -> list[Finding]:
    """Return the findings about the modules and optimizers that `build` made, or none if one of both is no dict."""
    if not hasattr(task.modules, "items") or not hasattr(task.optimizers, "items"):
        return []
    return [*_find_owners(task), *_find_dtypes(task)]


def _find_owners(task: Task[Any]) -> Iterator[Finding]:
    named = get_named_parameters(task.modules)
    names = {id(parameter): name for name, parameter in named.items()}
    owners: dict[int, list[str]] = {}
    for key, optimizer in task.optimizers.items():
        for index, parameter in enumerate(get_parameters(optimizer)):
            owners.setdefault(id(parameter), []).append(key)
            if id(parameter) not in names:
                shape = "lazy" if is_lazy(parameter) else f"of shape {tuple(parameter.shape)}"
                yield make_finding("outside-modules", f"{key}[{index}]", f"a parameter {shape} that no module has")
    for name, parameter in named.items():
        keys = owners.get(id(parameter), [])
        if len(keys) > 1:
            yield make_finding("two-optimizers", name, f"optimizers {' and '.join(map(repr, keys))} have it")
    loose = [name for name, p in named.items() if p.requires_grad and id(p) not in owners]
    yield from make_group("no-optimizer", loose, "trainable, but in no optimizer")
    if task.optimizers and named and not any(named[names[i]].requires_grad for i in owners if i in names):
        yield make_finding("nothing-to-train", type(task).__name__, f"0 of {len(named)} parameters are trained")


def _find_dtypes(task: Task[Any]) -> Iterator[Finding]:
    half: dict[str, list[str]] = {}
    for name, parameter in get_named_parameters(task.modules).items():
        if parameter.requires_grad and parameter.dtype in (torch.float16, torch.bfloat16):
            half.setdefault(str(parameter.dtype).removeprefix("torch."), []).append(name)
    for dtype, names in half.items():
        yield from make_group("half-precision-parameter", names, f"{len(names)} parameters in {dtype}")


def _find_late_parameters(trial: ObservedTrial) -> list[Finding]:
    owned = {id(p) for optimizer in trial.task.optimizers.values() for p in get_parameters(optimizer)}
    now = get_named_parameters(trial.task.modules).items()
    late = [name for name, p in now if p.requires_grad and trial.named.get(name) is not p and id(p) not in owned]
    return make_group("created-after-optimizer", late, f"absent after build, present after {trial.windows} windows")
