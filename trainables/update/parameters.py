"""Names and checks of the parameters of optimizers: each belongs to one optimizer, in fp32."""

import inspect
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from searchlight.trainables.precision import Precision

Optimizers = Mapping[str, torch.optim.Optimizer]


def get_parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return all parameters of `optimizer`, including frozen ones."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def get_parameter_names(optimizers: Optimizers, modules: Mapping[str, nn.Module]) -> dict[int, str]:
    """Return a name for each parameter, by its id: its path in `modules`, else the name in its optimizer."""
    names: dict[int, str] = {}
    for key, optimizer in optimizers.items():
        names.update((id(parameter), f"{key}[{index}]") for index, parameter in enumerate(get_parameters(optimizer)))
        for group in optimizer.param_groups:  # groups have names if the optimizer got named_parameters()
            names.update((id(p), name) for p, name in zip(group["params"], group.get("param_names", ()), strict=False))
    names.update((id(parameter), name) for name, parameter in get_named_parameters(modules).items())
    return names


def get_named_parameters(modules: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    """Return the parameters of `modules` by name. A parameter that two modules share is listed once."""
    named: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for key, module in modules.items():
        for name, parameter in module.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                named[f"{key}.{name}"] = parameter
    return named


def is_sharded(parameters: Iterable[Tensor]) -> bool:
    """Return whether any of `parameters` is sharded over ranks."""
    if "torch.distributed.tensor" not in sys.modules:  # its import takes long
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(parameter, DTensor) for parameter in parameters)


def get_local(tensor: Tensor) -> Tensor:
    """Return the local shard of `tensor`, which shares its memory, or `tensor` if it is not sharded."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def check_optimizers(optimizers: Optimizers, names: Mapping[int, str], bf16: bool, ranks: int) -> None:
    """Raise if an update could not train the parameters of `optimizers` exactly.

    Args:
        optimizers: The optimizers by name.
        names: The names of the parameters by id.
        bf16: Whether parameters may be in bf16.
        ranks: The number of ranks.

    Raises:
        ValueError: No parameter is trainable, an optimizer needs closures, or it needs sparse gradients with several
            ranks. Also if a parameter belongs to two optimizers or is in half precision.
    """
    if not optimizers:
        raise ValueError("optimizers must name at least one optimizer, but got none.")
    for key, optimizer in optimizers.items():
        if _is_closure_required(optimizer):
            raise ValueError(
                f"optimizer {key!r} must step without a closure, but got {type(optimizer).__name__}. "
                "Use a first-order one."
            )
        if ranks > 1 and isinstance(optimizer, torch.optim.SparseAdam):
            raise ValueError(
                f"optimizer {key!r} must take dense gradients, which is what {ranks} ranks sum, but got SparseAdam. "
                "Use another one, or one worker."
            )
    _check_owners(optimizers, names)
    if not any(parameter.requires_grad for optimizer in optimizers.values() for parameter in get_parameters(optimizer)):
        raise ValueError(
            f"optimizers must hold a parameter that requires a gradient, but none of {', '.join(optimizers)} does. "
            "To train one update, no other one needs to be frozen: it reaches its own parameters alone."
        )
    for key, optimizer in optimizers.items():
        _check_dtypes(key, get_parameters(optimizer), names, bf16)


def _is_closure_required(optimizer: torch.optim.Optimizer) -> bool:
    parameters = inspect.signature(optimizer.step).parameters
    return "closure" in parameters and parameters["closure"].default is inspect.Parameter.empty


def _check_owners(optimizers: Optimizers, names: Mapping[int, str]) -> None:
    owners: dict[int, str] = {}
    for key, optimizer in optimizers.items():
        for parameter in get_parameters(optimizer):
            if id(parameter) in owners:
                raise ValueError(
                    f"each parameter must belong to one optimizer, but {owners[id(parameter)]!r} and {key!r} share "
                    f"{names[id(parameter)]} of shape {tuple(parameter.shape)}."
                )
            owners[id(parameter)] = key


def _check_dtypes(key: str, parameters: list[Tensor], names: Mapping[int, str], bf16: bool) -> None:
    odd = [names[id(parameter)] for parameter in parameters if parameter.is_complex()]
    if odd:
        raise ValueError(f"parameters of optimizer {key!r} must be real numbers, but {odd[0]} is complex.")
    refused = {precision.dtype for precision in Precision if precision.mode.autocast}
    refused -= {torch.bfloat16} if bf16 else set()
    half = [parameter for parameter in parameters if parameter.requires_grad and parameter.dtype in refused]
    if not half:
        return
    listed = ", ".join(f"{names[id(p)]} in {str(p.dtype).removeprefix('torch.')}" for p in half[:5])
    more = f" and {len(half) - 5} more" if len(half) > 5 else ""
    raise ValueError(
        f"parameters of optimizer {key!r} must be fp32, but got {listed}{more}. "
        "Train an fp32 copy: module.float(); precision decides what the forward pass runs in."
    )


def move_state_to_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Move state that `optimizer` made in its constructor to the devices of its parameters.

    Adagrad makes its sums there, and `build` makes optimizers before the modules are moved.
    """
    if any(
        isinstance(value, Tensor) and name != "step" and value.device != parameter.device
        for parameter, state in optimizer.state.items()
        if isinstance(parameter, Tensor)
        for name, value in state.items()
    ):  # as a checkpoint does, so that each optimizer decides what must stay on the CPU
        optimizer.load_state_dict(optimizer.state_dict())


def keep_local_kernels(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return `state` with the kernel options that `optimizer` was created with.

    `load_state_dict` would replace them by those of the machine that saved `state`.

    Raises:
        ValueError: `optimizer` has another number of parameter groups.
    """
    count, saved_count = len(optimizer.param_groups), len(state["param_groups"])
    if count != saved_count:
        raise ValueError(
            f"{type(optimizer).__name__} must have the {saved_count} parameter groups of its checkpoint, but has "
            f"{count}. Add those that training adds in the task's load_state_dict, too."
        )
    kernels = ("fused", "foreach", "capturable", "differentiable")
    kernel_choices = [{key: group[key] for key in kernels if key in group} for group in optimizer.param_groups]
    groups = [{**saved, **kept} for saved, kept in zip(state["param_groups"], kernel_choices, strict=True)]
    return {**state, "param_groups": groups}
