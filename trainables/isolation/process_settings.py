"""The settings of a process that a trial may change by accident: how each is read, and how it is written."""

import decimal
import functools
import gc
import locale
import logging
import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

OURS = "trainables"  # this logger and those below it belong to the worker, which listens to them


class Setting(NamedTuple):
    """Something that holds for the whole process. `write` takes what `read` gave and keeps no hold on it."""

    read: Callable[[], Any]
    write: Callable[[Any], object]


def create_attribute_setting(owner: Any, name: str) -> Setting:
    """`owner.name`."""
    return Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def create_items_setting(container: Callable[[], Any]) -> Setting:
    """The items of a list or dict that others hold too, so that it stays the same object."""

    def write(items: Any) -> None:
        there = container()
        there.clear()
        (there.update if isinstance(there, dict) else there.extend)(items)

    return Setting(lambda: container().copy(), write)


# Python and the process


def _restore_environment(before: dict[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


def _get_working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was deleted
        return ""


def _get_umask() -> int:
    mask = os.umask(0o077)  # there is no way to read it alone
    os.umask(mask)
    return mask


def _get_resource_limits() -> dict[int, tuple[int, int]]:
    """Soft and hard, by the number of the resource."""
    numbers = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
    return {number: resource.getrlimit(number) for number in numbers}


def _restore_resource_limits(before: dict[int, tuple[int, int]]) -> None:
    for number, limits in before.items():
        if resource.getrlimit(number) != limits:
            with suppress(ValueError, OSError):  # a hard one that was lowered stays, which is seen when they are read
                resource.setrlimit(number, limits)


def _get_signal_handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _restore_signal_handlers(before: dict[int, Any]) -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # nor can a trial set one from here
    for number, handler in before.items():
        if signal.getsignal(number) != handler and handler is not None:  # None: set by something that is not Python
            signal.signal(number, handler)


def forget_warnings() -> None:
    """Let every module show its warnings again that are shown once."""
    with warnings.catch_warnings():  # what was shown under other filters does not count, and these are a copy
        pass
    getattr(warnings, "onceregistry", {}).clear()


LoggerState = tuple[int, bool, bool, list[Any], list[Any]]
NEW_LOGGER: LoggerState = (logging.NOTSET, False, True, [], [])


def _get_logger_states() -> dict[str, LoggerState]:
    """Those that are not as new ones are."""
    states = {}
    for name, logger in {"": logging.root, **logging.root.manager.loggerDict}.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] != OURS:
            state = (logger.level, logger.disabled, logger.propagate, [*logger.handlers], [*logger.filters])
            if state != NEW_LOGGER:
                states[name] = state
    return states


def _restore_loggers(before: dict[str, LoggerState]) -> None:
    now = _get_logger_states()
    for name in before.keys() | now.keys():
        state = before.get(name, NEW_LOGGER)
        if now.get(name, NEW_LOGGER) == state:
            continue
        logger = logging.getLogger(name)
        for handler in logger.handlers:
            if handler not in state[3]:
                handler.close()  # a file, most of the time
        level, logger.disabled, logger.propagate, handlers, filters = state
        logger.setLevel(level)  # clears what loggers remember of levels
        logger.handlers[:], logger.filters[:] = handlers, filters


def _restore_threading_hooks(before: tuple[Any, Any, Any]) -> None:
    threading.excepthook = before[0]
    threading.settrace(before[1])
    threading.setprofile(before[2])


def _restore_working_directory(before: str) -> None:
    if before:
        os.chdir(before)


def _get_decimal_state() -> tuple[Any, ...]:
    state: tuple[Any, ...] = decimal.getcontext().__reduce__()[1]
    return state


PROCESS = {
    "the environment": Setting(lambda: dict(os.environ), _restore_environment),
    "the current folder": Setting(_get_working_directory, _restore_working_directory),
    "the umask": Setting(_get_umask, os.umask),
    "the limits of resources": Setting(_get_resource_limits, _restore_resource_limits),
    "the locale": Setting(lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    "the signal handlers": Setting(_get_signal_handlers, _restore_signal_handlers),
    "the warning filters": create_items_setting(lambda: warnings.filters),
    "the way warnings are shown": create_attribute_setting(warnings, "showwarning"),
    "the loggers": Setting(_get_logger_states, _restore_loggers),
    "the level below which nothing is logged": create_attribute_setting(logging.root.manager, "disable"),
    **{
        f"sys.{name}": create_attribute_setting(sys, name)
        for name in ("stdin", "stdout", "stderr", "excepthook", "displayhook")
    },
    "sys.unraisablehook": create_attribute_setting(sys, "unraisablehook"),
    **{f"sys.{name}": create_items_setting(functools.partial(getattr, sys, name)) for name in ("argv", "path")},
    "the trace function": Setting(sys.gettrace, sys.settrace),
    "the profile function": Setting(sys.getprofile, sys.setprofile),
    "the hooks of threads": Setting(
        lambda: (threading.excepthook, threading.gettrace(), threading.getprofile()), _restore_threading_hooks
    ),
    "the recursion limit": Setting(sys.getrecursionlimit, sys.setrecursionlimit),
    "the limit of digits": Setting(sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    "the switch interval": Setting(sys.getswitchinterval, sys.setswitchinterval),
    "the garbage collector": Setting(gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "the thresholds of the garbage collector": Setting(gc.get_threshold, lambda counts: gc.set_threshold(*counts)),
    "the debug flags of the garbage collector": Setting(gc.get_debug, gc.set_debug),
    "the callbacks of the garbage collector": create_items_setting(lambda: gc.callbacks),
    "the decimal context": Setting(_get_decimal_state, lambda state: decimal.setcontext(decimal.Context(*state))),
    "the timeout of sockets": Setting(socket.getdefaulttimeout, socket.setdefaulttimeout),
    "the start method of processes": Setting(
        lambda: multiprocessing.get_start_method(allow_none=True),
        lambda method: multiprocessing.set_start_method(method, force=True),
    ),
    "numpy's treatment of errors": Setting(np.geterr, lambda state: np.seterr(**state)),
    "numpy's callback for errors": Setting(np.geterrcall, np.seterrcall),
    "numpy's print options": Setting(np.get_printoptions, lambda options: np.set_printoptions(**options)),
}
