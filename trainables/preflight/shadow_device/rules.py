"""The rules by which operators of CUDA accept tensors of two devices.

torch declares them in native_functions.yaml, from which its build generates the check of each operator. torchgen, which
is installed with torch, has this file. See "device_check" in aten/src/ATen/native/README.md.
"""

import re
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import torch
from torch import Tensor

Rule = Literal["strict", "iterator", "free"]
# Libraries of operators that have kernels for CUDA.
KNOWN = {"aten", "prim", "prims", "profiler", "c10d", "mkldnn", "quantized", "torchvision", "higher_order"}
# The kernels of indexing move indices from the CPU, but only to the device of what is indexed.
INDEXING = {
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index",
    "aten::_unsafe_index_put",
}  # fmt: skip
# Those that check nothing themselves, and those of which CUDA takes another one than a CPU does.
FREE = {
    "aten::_to_copy", "aten::copy", "aten::_foreach_copy_", "aten::resize_as_", "aten::lift_fresh", "aten::detach",
    "aten::_ctc_loss", "aten::_ctc_loss_backward", "aten::_has_same_storage_numel", "aten::_make_dual",
    "aten::record_stream",
}  # fmt: skip
STRICT = {"aten::stack"}  # which calls cat, a strict one, in C++ code that no mode sees
# Operators that wait until the GPU has computed the value that the CPU needs.
READS = {
    "aten::_local_scalar_dense": "item(), float(), bool() or an if",
    "aten::nonzero": "nonzero",
    "aten::equal": "torch.equal",
    "aten::is_nonzero": "an if",
    "aten::masked_select": "masked_select",
    "aten::unique_dim": "unique", "aten::_unique": "unique", "aten::_unique2": "unique",
    "aten::unique_consecutive": "unique_consecutive", "aten::bincount": "bincount",
    "aten::_linalg_check_errors": "a check of torch.linalg",
}  # fmt: skip
MASK = "a boolean mask as an index"
PRODUCTS = {
    "aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::addbmm", "aten::mv", "aten::addmv", "aten::dot",
    "aten::vdot",
}  # fmt: skip
NO_KERNELS = ("aten::histogram", "aten::_histogramdd", "aten::_spdiags")


@cache
def read_rules() -> dict[str, Rule]:
    """Return how each operator of torch, such as "add.Tensor", treats a tensor on the CPU next to one on the GPU.

    "strict" operators compare the devices of all tensors. "iterator" ones also take numbers on the CPU, which are
    tensors without dimensions. "free" ones take any tensor.
    """
    text = files("torchgen").joinpath("packaged/ATen/native/native_functions.yaml").read_text(encoding="utf-8")
    rules: dict[str, Rule] = {}
    for entry in re.split(r"^- func: ", text, flags=re.MULTILINE)[1:]:
        name = entry.partition("(")[0]
        if "device_check: NoCheck" in entry:
            rules[name] = "iterator" if "TensorIterator" in entry or name.startswith("_foreach") else "free"
        else:  # the check is generated for kernels of CUDA alone
            rules[name] = (
                "strict" if re.search(r"structured_delegate|^ .*CUDA.*: ", entry, re.MULTILINE) else "iterator"
            )
    return rules


def get_rule(name: str) -> Rule:
    """Return the rule of an operator, such as "aten::add.Tensor". Those of other libraries are free."""
    function = name.partition(".")[0]
    if not name.startswith("aten::") or function in FREE:
        return "free"
    if function in STRICT:
        return "strict"
    return read_rules().get(name.removeprefix("aten::"), "iterator")


def find_missing_kernel(name: str, first: Tensor) -> str:
    """Return what CUDA says of an operator that it does not have for the dtype of its `first` tensor, or ""."""
    if name in PRODUCTS and not (first.dtype.is_floating_point or first.dtype.is_complex):
        return f'"{name[6:]}_cuda" not implemented for {str(first.dtype)[6:]}'
    if name.startswith(NO_KERNELS):
        return f"Could not run '{name}' with arguments from the 'CUDA' backend"
    return ""


def find_read(name: str, args: tuple[Any, ...]) -> str:
    """Return how the operator `name` makes the CPU wait for the GPU, or "" if it does not."""
    if name in INDEXING and any(_is_mask(index) for index in args[1]):
        # A single number for a mask is filled in without a wait: canDispatchToMaskedFill in IndexingUtils.h.
        return "" if len(args) > 2 and args[2].numel() == 1 else MASK
    return READS.get(name, "")


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
