"""The mode that sees each function of torch, answers where a tensor is, and makes or moves tensors."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from searchlight.trainables.preflight.shadow_device.device import ShadowDevice
from searchlight.trainables.preflight.shadow_device.operators import OperatorMode, iterate_tensors
from searchlight.trainables.preflight.shadow_device.storages import Place, StorageTags, WrongDevice, find_place
from searchlight.trainables.private_api import device_contexts, get_device_constructors, get_function_modes

GPU = torch.device("cuda", 0)
NUMPY = "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
LENGTHS = ("input_lengths", "target_lengths")  # of ctc_loss
GRADIENT = "assigned grad has data located on a different device"
# Those that take the place of the tensor that they are given as data.
OF_DATA = {
    torch.tensor, torch.as_tensor, torch.asarray, torch.sparse_coo_tensor, torch.sparse_csr_tensor,
    torch.sparse_csc_tensor, torch.sparse_bsr_tensor, torch.sparse_bsc_tensor, torch.sparse_compressed_tensor,
}  # fmt: skip
MEMORY_OF_DATA = {torch.as_tensor, torch.asarray}  # on the CPU, they share the memory of what they are given


class HostOnly(WrongDevice, TypeError):
    """The error of a conversion that needs a tensor on the CPU."""


class FunctionMode(TorchFunctionMode):
    """Answers questions about devices from the tags, and makes and moves tensors on the CPU.

    Args:
        device: The simulated GPU, which counts what the CPU waits for.
        operators: The mode that tags what operators make.
    """

    def __init__(self, device: ShadowDevice, operators: OperatorMode) -> None:
        super().__init__()
        self._tags, self._operators, self._tell = device.tags, operators, device.count_wait
        self._constructors = {*get_device_constructors()}
        new = (getattr(Tensor, name) for name in ("new_tensor", "new_empty", "new_zeros", "new_ones", "new_full"))
        is_on_gpu = self.is_on_gpu
        get_device, is_cuda, is_cpu = (getattr(Tensor, name).__get__ for name in ("device", "is_cuda", "is_cpu"))
        gradient: Any = Tensor.grad  # a descriptor, for which type checkers take the value
        self._answers: dict[Any, Callable[..., Any]] = {
            get_device: lambda tensor, *_: GPU if is_on_gpu(tensor) else get_device(tensor),
            is_cuda: lambda tensor, *_: is_on_gpu(tensor),
            is_cpu: lambda tensor, *_: not is_on_gpu(tensor) and is_cpu(tensor),
            Tensor.get_device: lambda tensor: 0 if is_on_gpu(tensor) else Tensor.get_device(tensor),
            gradient.__set__: self._set_gradient,
            Tensor.numpy: self._convert(Tensor.numpy),
            Tensor.__array__: self._convert(Tensor.__array__),
            Tensor.__deepcopy__: self._deepcopy,
            Tensor.tolist: self._to_list,
            Tensor.backward: self._backward,
            Tensor.cuda: self._to_cuda,
            Tensor.cpu: lambda tensor, **options: self._to(tensor, "cpu", **options),
            Tensor.to: self._to,
            Tensor.type_as: lambda tensor, other: self._to(tensor, other),
            Tensor.type: self._type,
            F.ctc_loss: self._bind_ctc_loss(F.ctc_loss),
            torch.ctc_loss: self._bind_ctc_loss(torch.ctc_loss),
            **{function: self._bind_new(function) for function in (*new, Tensor.new)},
        }

    def is_on_gpu(self, tensor: Tensor) -> bool:
        """Return whether `tensor` counts as being on the GPU."""
        return self._tags.get(tensor) == "cuda"

    def entered(self) -> AbstractContextManager[object]:
        """Return a context in which this mode is on. It is off inside of a function of torch that it sees."""
        return nullcontext() if self in get_function_modes() else self

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        operators = self._operators
        if (answer := self._answers.get(func)) is not None:
            return answer(*args, **kwargs)
        if kwargs.get("pin_memory"):  # which needs a driver
            kwargs = {**kwargs, "pin_memory": False}
        operators.depth += 1
        try:
            if kwargs.get("device") is not None:
                place = find_place(kwargs["device"])
                return self._make(func, place, args, kwargs) if place else func(*args, **kwargs)
            if func in self._constructors:
                return self._make(func, self._find_default(func, args, kwargs), args, kwargs)
            if not (args and isinstance(args[0], Tensor)) and not [*iterate_tensors((*args, *kwargs.values()))]:
                with operators.make_in("cpu"):  # e.g. torch.normal, or from_numpy
                    return func(*args, **kwargs)
            return func(*args, **kwargs)
        finally:
            operators.depth -= 1

    def _find_default(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Place:
        """Return where a function that makes tensors puts them, if it is not told."""
        if func in OF_DATA and (data := [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]):
            return self._tags.get(data[-1])  # a sparse tensor is where its values are, the last of them
        device = device_contexts.CURRENT_DEVICE  # of torch.set_default_device, or of a with statement
        return (device is not None and find_place(device)) or "cpu"

    def _make(self, func: Any, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what `func` makes, in `place`."""
        if func in OF_DATA:
            args = tuple(self._move(value, place) if isinstance(value, Tensor) else value for value in args)
        with self._operators.make_in(place):
            made = func(*args, **{**kwargs, "device": "cpu"})
            if func in MEMORY_OF_DATA and place == "cuda" and not isinstance(args[0], Tensor):
                made = made.clone()
        if place == "cuda" and func not in MEMORY_OF_DATA:
            for tensor in iterate_tensors((made,)):
                self._tags.put(tensor, place)
        return made

    def _bind_new(self, func: Any) -> Callable[..., Any]:
        def make(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            device = kwargs.pop("device", None)
            place = self._tags.get(tensor) if device is None else find_place(device)
            if place is None:
                return func(tensor, *args, **kwargs, device=device)
            with self._operators.make_in(place):
                made = func(tensor, *args, **kwargs)
            self._tags.put(made, place)  # since what new_tensor makes is made before operators
            return made

        return make

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        first = kwargs.get("other", kwargs.get("device", args[0] if args else None))
        place: Place | None = None
        if isinstance(first, Tensor):
            place = self._tags.get(first)
        elif isinstance(first, str | torch.device | int):
            place = find_place(first)
            if place is None:
                return tensor.to(*args, **kwargs)
            if "device" in kwargs:
                kwargs["device"] = "cpu"
            else:
                args = ("cpu", *args[1:])
        if place is not None and not tensor.is_meta:
            moved = self._move(tensor, place, is_waiting=not kwargs.get("non_blocking"))
            if moved is not tensor:
                kwargs.pop("copy", None)
            tensor = moved
        return tensor.to(*args, **kwargs)

    def _to_cuda(self, tensor: Tensor, device: Any = None, non_blocking: bool = False, **options: Any) -> Tensor:
        return self._to(tensor, GPU if device is None else device, non_blocking=non_blocking, **options)

    def _move(self, tensor: Tensor, place: Place, is_waiting: bool = True) -> Tensor:
        """Return `tensor` itself if it is in `place`, else a copy there, through which gradients flow back."""
        before = self._tags.get(tensor)
        if before == place:
            return tensor
        if is_lazy(tensor):  # it has no values yet
            self._tags.put(tensor, place)
            return tensor
        if before == "any":  # nothing has met it yet
            self._tags.put(tensor, place)
            return tensor
        if place == "cpu" and is_waiting:
            self._tell("cpu()")
        if tensor.requires_grad and torch.is_grad_enabled():
            moved: Tensor = Move.apply(tensor, self._tags, place)  # type: ignore[no-untyped-call]
            return moved
        moved = tensor.clone()
        self._tags.put(moved, place)
        return moved

    def _type(self, tensor: Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            name = tensor.type()
            return name.replace("torch.", "torch.cuda.", 1) if self.is_on_gpu(tensor) else name
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            return self._move(tensor, "cuda").type(dtype.replace("cuda.", "", 1), *args, **kwargs)
        return tensor.type(dtype, *args, **kwargs)

    def _set_gradient(self, tensor: Tensor, gradient: Any) -> None:
        if isinstance(gradient, Tensor) and {self._tags.get(tensor), self._tags.get(gradient)} == {"cpu", "cuda"}:
            raise WrongDevice(GRADIENT)
        tensor.grad = gradient

    def _convert(self, func: Any) -> Callable[..., Any]:
        def convert(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self.is_on_gpu(tensor):
                raise HostOnly(NUMPY)
            return func(tensor, *args, **kwargs)

        return convert

    def _deepcopy(self, tensor: Tensor, memo: dict[int, Any]) -> Tensor:
        copied: Tensor = Tensor.__deepcopy__(tensor, memo)  # type: ignore[no-untyped-call]
        if self.is_on_gpu(tensor):
            self._tags.put(copied, "cuda")
        return copied

    def _to_list(self, tensor: Tensor) -> Any:
        if self.is_on_gpu(tensor):
            self._tell("tolist()")
            tensor = self._move(tensor.detach(), "cpu", is_waiting=False)
        return tensor.tolist()

    def _bind_ctc_loss(self, func: Any) -> Callable[..., Any]:
        """Return `func` with lengths on the device of the others. CUDA takes them on either one, or as numbers."""

        def compute(log_probs: Tensor, *args: Any, **kwargs: Any) -> Any:
            place = self._tags.get(log_probs)
            lengths = [self._move(torch.as_tensor(value), place, is_waiting=False) for value in args[1:3]]
            named = {key: self._move(torch.as_tensor(kwargs[key]), place) for key in LENGTHS if key in kwargs}
            return func(log_probs, *args[:1], *lengths, *args[3:], **{**kwargs, **named})

        return compute

    def _backward(
        self,
        tensor: Tensor,
        gradient: Any = None,
        retain_graph: Any = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        with self.entered():  # for the Python code of the backward pass: hooks, custom functions, checkpoints
            torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)


class Move(torch.autograd.Function):
    """Copies a tensor to the other device. The gradient is copied back."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor, tags: StorageTags, place: Place) -> Tensor:
        """Return a copy of `tensor` in `place`."""
        moved = tensor.clone()
        tags.put(moved, place)
        return moved

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep where the tensor was."""
        tensor, ctx.tags, ctx.place = inputs
        ctx.before = ctx.tags.get(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        """Return the gradient where the tensor was."""
        return Move.apply(gradients[0], ctx.tags, ctx.before), None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """Return the tangent where the copy is."""
        moved: Tensor = Move.apply(tangents[0], ctx.tags, ctx.place)  # type: ignore[no-untyped-call]
        return moved
