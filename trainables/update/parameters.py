"""What optimizers may hold: each parameter once, in fp32, under a name that a message can use."""

import inspect
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainables.precision import Precision

Optimizers = Mapping[str, torch.optim.Optimizer]


def get_parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """All parameters of `optimizer`, frozen ones too."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def get_parameter_names(optimizers: Optimizers, modules: Mapping[str, nn.Module]) -> dict[int, str]:
    """A name for each parameter, by its id: its place in `modules`, else what its optimizer knows of it."""
    names: dict[int, str] = {}
    for key, optimizer in optimizers.items():
        names.update((id(parameter), f"{key}[{index}]") for index, parameter in enumerate(get_parameters(optimizer)))
        for group in optimizer.param_groups:  # which know names if the optimizer was given named_parameters()
            names.update((id(p), name) for p, name in zip(group["params"], group.get("param_names", ()), strict=False))
    names.update((id(parameter), name) for name, parameter in get_named_parameters(modules).items())
    return names


def get_named_parameters(modules: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    """The parameters of `modules` by name, each once, also one that two modules share."""
    named: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for key, module in modules.items():
        for name, parameter in module.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                named[f"{key}.{name}"] = parameter
    return named


def is_sharded(parameters: Iterable[Tensor]) -> bool:
    """Return whether a part of `parameters` lies on other ranks."""
    if "torch.distributed.tensor" not in sys.modules:  # its import takes long
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(parameter, DTensor) for parameter in parameters)


def get_local(tensor: Tensor) -> Tensor:
    """Return what this rank holds of `tensor`, in its own memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def check_optimizers(optimizers: Optimizers, names: Mapping[int, str], bf16: bool, ranks: int) -> None:
    """Refuse what an update could not train exactly.

    Args:
        optimizers: By name.
        names: Of the parameters, by id.
        bf16: Whether parameters may be in bf16.
        ranks: How many train together.

    Raises:
        ValueError: There is nothing to train, an optimizer needs closures or, among several ranks, sparse gradients,
            or a parameter belongs to two optimizers or is in half precision.
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


def keep_local_kernels(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return `state` with the kernels that `optimizer` was built with.

    Its `load_state_dict` would replace them by those of the machine that saved it.
    """
    kernels = ("fused", "foreach", "capturable", "differentiable")
    own = [{key: group[key] for key in kernels if key in group} for group in optimizer.param_groups]
    groups = [{**saved, **kept} for saved, kept in zip(state["param_groups"], own, strict=False)]
    return {**state, "param_groups": groups}
