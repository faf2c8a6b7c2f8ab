"""The check "would it run on a GPU?": a trial that is built, trained, evaluated and resumed on a simulated one."""

import signal
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from searchlight.trainables.context import Context
from searchlight.trainables.preflight.checks.errors import find_error
from searchlight.trainables.preflight.findings import (
    Finding,
    Kind,
    Severity,
    declare_kinds,
    describe_error,
    make_finding,
)
from searchlight.trainables.preflight.observation import ObservedTrial
from searchlight.trainables.preflight.shadow_device.device import ShadowDevice
from searchlight.trainables.preflight.shadow_device.shadow import shadow_cuda
from searchlight.trainables.preflight.shadow_device.storages import WrongDevice
from searchlight.trainables.registry import find_user_frame
from searchlight.trainables.task import Task, TaskConfig

GPU = "cuda:0"
PART = "a simulated GPU"
WINDOWS, FEWEST, ENOUGH_S = 6, 2, 1.0  # of training: more than the fewest only in so many CPU seconds
EVALUATION_S = 5.0  # CPU seconds, after which an evaluation is ended
declare_kinds(
    "On a GPU",
    Kind("wrong-device", "warning", "Make it on self.context.device or move it there; register constants as buffers."),
    Kind("waits-for-gpu", "note", "Keep the value on the GPU, e.g. by self.log, or read it less often."),
)


def find_gpu_problems(
    load: Callable[[], type[Task[Any]]], config: TaskConfig, context: Context, severity: Severity | None = None
) -> list[Finding]:
    """Train a trial on a simulated GPU. Return where CUDA would raise an error, and where it would be waited for.

    Args:
        load: Returns the task's class. It is called while the GPU is simulated, since modules ask for it, too.
        context: That of a trial on the CPU. What it keeps in its cache is on the CPU, and is not used.
        severity: Of `wrong-device`, if it is another one than usual.
    """
    with shadow_cuda() as device:
        trial, waits = _run_trial(load, config, device, context.files)
    if trial.error is None:
        return [*find_waits(waits, trial.windows, "window"), *find_unseen(device)]
    found = find_wrong_device(trial.error, trial.stack, f" in {trial.phase}", severity)
    if not found:
        found = _explain(load, config, context, trial)
    return [*found, *find_unseen(device)]


def find_wrong_device(error: BaseException, stack: str, where: str, severity: Severity | None) -> list[Finding]:
    """Return a finding with the user's line, if `error` is one of the simulated GPU or was caused by one.

    Args:
        where: The phase in which it was raised, to follow its message.
    """
    cause = next((each for each in _iterate_causes(error) if isinstance(each, WrongDevice)), None)
    if cause is None:
        return []
    message = str(cause).strip().splitlines()[-1]  # that of a worker follows its traceback
    message = message.removeprefix(f"{WrongDevice.__module__}.{WrongDevice.__name__}: ")
    return [make_finding("wrong-device", find_user_frame(stack) or "the task", message + where, severity)]


def find_waits(waits: Counter[tuple[str, str]], count: int, unit: str) -> list[Finding]:
    """Return the lines that make the CPU wait for the GPU at least once in each of `count` windows or steps."""
    return [
        make_finding("waits-for-gpu", where, f"{kind}: {number / count:.3g} times per {unit}")
        for (where, kind), number in waits.most_common()
        if number >= count > 0
    ]


def find_unseen(device: ShadowDevice) -> list[Finding]:
    """Return a note that names what the code does and the simulation cannot look into, if there is any."""
    return [make_finding("not-audited", PART, ", ".join(sorted(device.unseen)))] if device.unseen else []


def _run_trial(
    load: Callable[[], type[Task[Any]]], config: TaskConfig, device: ShadowDevice, files: Path | None
) -> tuple[ObservedTrial, Counter[tuple[str, str]]]:
    """Build, train, evaluate and resume a trial. Return it with its error, if any, and its waits while it trained."""
    trial = ObservedTrial(load(), config, Context(GPU, files=files))
    device.is_counting = lambda: trial.phase == "train"
    device.waits.clear()
    start = time.process_time()
    trial.train(WINDOWS, lambda: trial.windows >= FEWEST and time.process_time() - start > ENOUGH_S)
    waits = device.waits.copy()
    if not _run_limited(trial.evaluate, EVALUATION_S):
        device.unseen.add(f"evaluate after {EVALUATION_S:.0f} CPU seconds")
    if trial.error is None:
        _resume(trial, load, config)
    trial.close()
    return trial, waits


class _OutOfTime(BaseException):
    """Ends what takes too long. It is no Exception, so that no task handles it."""


def _run_limited(action: Callable[[], object], seconds: float) -> bool:
    """Call `action`, and return whether it came to its end. In the main thread, it is ended after CPU `seconds`."""

    def end(*_: Any) -> None:
        raise _OutOfTime

    if threading.current_thread() is not threading.main_thread():  # the only one that a signal can end
        action()
        return True
    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.1)  # again, since a destructor drops an exception
    try:
        action()
    except _OutOfTime:
        return False
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
    return True


def _resume(trial: ObservedTrial, load: Callable[[], type[Task[Any]]], config: TaskConfig) -> None:
    """Resume `trial` in another one, which trains one more window. Record its error in `trial`."""
    assert trial.trainer is not None
    resumed = None
    try:
        with tempfile.TemporaryDirectory(prefix="searchlight-preflight-") as folder:
            path = Path(folder, "checkpoint")
            trial.trainer.save(path)
            resumed = ObservedTrial(load(), config, trial.task.context.for_next_trial())
            if resumed.trainer is not None:
                resumed.trainer.load(path)
        resumed.train(1)
        trial.error, trial.stack = resumed.error, resumed.stack
    except Exception as error:  # whatever the task raises when it is saved or resumed
        trial.error, trial.stack = error, traceback.format_exc()
    finally:
        if resumed is not None:
            resumed.close()


def _explain(
    load: Callable[[], type[Task[Any]]], config: TaskConfig, context: Context, trial: ObservedTrial
) -> list[Finding]:
    """Return what is wrong with a task that raised an error that is not of the GPU.

    If it raises nothing on the CPU, the simulation does not do what the task needs, such as a process group of NCCL.
    """
    assert trial.error is not None
    on_cpu = ObservedTrial(load(), config, context)
    on_cpu.train(max(1, trial.windows))
    on_cpu.evaluate()
    if on_cpu.error is None:
        _resume(on_cpu, load, config)
    on_cpu.close()
    return find_error(on_cpu) or [make_finding("not-audited", PART, describe_error(trial.error))]


def _iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
