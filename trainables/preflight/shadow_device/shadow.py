"""The context in which a GPU is simulated."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from searchlight.trainables.preflight.shadow_device.device import ShadowDevice
from searchlight.trainables.preflight.shadow_device.functions import FunctionMode
from searchlight.trainables.preflight.shadow_device.operators import OperatorMode
from searchlight.trainables.preflight.shadow_device.stubs import install_stubs


@contextmanager
def shadow_cuda() -> Iterator[ShadowDevice]:
    """Simulate one GPU on the CPU, for the code of this thread.

    Tensors have real values on the CPU. Each counts as being on the CPU or on the GPU, and an operator that CUDA would
    refuse raises WrongDevice. torch.cuda says that there is one GPU, to all threads of the process.
    """
    shadow = ShadowDevice()
    operators = OperatorMode(shadow)
    functions = FunctionMode(shadow, operators)
    with ExitStack() as stack:
        install_stubs(stack, shadow, functions.entered)
        stack.enter_context(operators)
        stack.enter_context(functions)
        yield shadow
