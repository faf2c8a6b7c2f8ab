"""A process that has imported what programs need, and forks a new process for each program.

It runs in the interpreter of the program. Therefore it imports only the standard library, and nothing of this package.
Its arguments are a socket, the interpreter and the interpreter's options. Its current folder is its own, and holds
PLAN. What it sends are lines of JSON; what it gets are lines of JSON, each after a file descriptor for the output.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import gc
import importlib
import importlib.machinery
import inspect
import io
import itertools
import json
import os
import runpy
import socket
import sys
import threading
import time
import types
import weakref
from typing import Any

PLAN = "plan.json"
MOST_DROPPED = 4  # modules, since each one costs a new start with all imports
LATEST_RESTART_S = 5.0  # of CPU time, after which a program is not begun again
# It belongs to an allocator that starts it again in a forked process.
HARMLESS_THREADS = {"jemalloc_bg_thd"}
LIBRARIES = {"site-packages", "dist-packages"}
STANDARD = os.path.dirname(os.__file__)


def is_library(path: str) -> bool:
    """Return whether `path` belongs to Python or to an installed package."""
    return path.startswith(STANDARD + os.sep) or not LIBRARIES.isdisjoint(path.split(os.sep))


class Server:
    """Imports modules and forks.

    Args:
        argv: The arguments of this process after the name of this file.
    """

    def __init__(self, argv: list[str]) -> None:
        self.folder = os.getcwd()
        self.environment = dict(os.environ)
        self.argv = argv
        self.socket = socket.socket(fileno=int(argv[0]))
        self.lines = self.socket.makefile("rb", buffering=0)
        # Python has made its streams for pipes, which programs get. What imports print is of no use.
        self.pipe = os.dup(1)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        os.close(silence)
        self.opened = list_open_files()
        with open(PLAN, encoding="utf-8") as file:
            self.plan = json.load(file)
        self.given: dict[str, str | None] = {}  # variables as a program had set them
        self.expected: dict[str, dict[str, str | None]] = {}  # by package, `given` when it was imported

    def import_modules(self) -> None:
        """Import the modules of the plan in their order.

        A module that leaves what no fork can copy is dropped, and this process starts again.
        """
        for name in self.plan["modules"]:
            if name in sys.modules:
                continue
            self.set_variables(name.partition(".")[0])
            count = len(sys.modules)
            problem = import_module(name) or self.find_problem(count)
            if problem:
                self.drop(name, problem)
        problem = find_thread()
        if problem:
            self.drop("", problem)
        os.unlink(PLAN)
        os.rmdir(self.folder)
        flush()
        gc.collect()
        gc.freeze()  # a collection in a forked process would copy all memory
        self.send(ready=len(sys.modules), dropped=self.plan["dropped"])

    def set_variables(self, package: str) -> None:
        """Set the variables as the first program had them when it imported `package`."""
        wanted = {
            **{name: self.environment.get(name) for name in self.given},
            **self.plan["variables"].get(package, {}),
        }
        for name, value in wanted.items():
            if os.environ.get(name) != value:  # else a library has set it here as well
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
                self.given[name] = value
        self.expected.setdefault(package, dict(self.given))

    def find_problem(self, count: int) -> str:
        """Return what the last import left that differs in a forked process, or "". There were `count` modules."""
        for _, path in sorted(list_open_files() - self.opened):
            return f"keeps {path} open"
        for module in list(itertools.islice(sys.modules.values(), count, None)):
            source = getattr(module, "__file__", None)
            # Modules that code makes, e.g. torch.ops, have no path or a relative one.
            if isinstance(source, str) and os.path.isabs(source) and source != __file__ and not is_library(source):
                return f"imports {source}"
        return find_thread()

    def drop(self, name: str, problem: str) -> None:
        """Start again without a module and what belongs to it."""
        dropped = {**self.plan["dropped"], name: problem}
        if not name or len(dropped) > MOST_DROPPED:
            self.send(failed="; ".join(f"{name} {why}".strip() for name, why in dropped.items()))
            os._exit(0)
        left = [other for other in self.plan["modules"] if other != name and not other.startswith(name + ".")]
        with open(PLAN, "w", encoding="utf-8") as file:
            json.dump({**self.plan, "modules": left, "dropped": dropped}, file)
        os.set_inheritable(self.socket.fileno(), True)
        os.dup2(self.pipe, 1)
        os.dup2(self.pipe, 2)
        command = [*self.argv[1:], os.path.abspath(__file__), *self.argv]
        os.execve(self.argv[1], command, self.environment)

    def send(self, **message: object) -> None:
        """Send a message. End this process if nobody is left to get it."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            os._exit(0)

    def serve(self) -> dict[str, Any]:
        """Fork for each request. Return the request in the forked process, and end this one when no more can come."""
        while True:
            try:
                _, ancillary, _, _ = self.socket.recvmsg(1, socket.CMSG_SPACE(4))
                line = self.lines.readline()
            except OSError:
                line = b""
            if not line:
                os._exit(0)
            output = int.from_bytes(ancillary[0][2][:4], sys.byteorder)
            request: dict[str, Any] = json.loads(line)
            process = os.fork()
            if process == 0:
                self.become(request, output)
                return request
            os.close(output)
            _, status = os.waitpid(process, 0)
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            self.send(code=code)

    def become(self, request: dict[str, Any], output: int) -> None:
        """Turn this process, which has just been forked, into what a new process is before its first line."""
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(request["folder"])
        changed = {name: value for name, value in os.environ.items() if self.environment.get(name) != value}
        changed = {name: value for name, value in changed.items() if self.given.get(name) != value}
        os.environ.clear()
        os.environ.update(changed)  # libraries set these when they are imported
        os.environ.update(request["environment"])
        folder = os.getcwd()
        sys.path[:] = [move(path, self.folder, folder) for path in sys.path]
        sys.argv[:] = ["-m" if request["module"] else request["script"], *request["arguments"]]
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[:] = request["argv"]
        if "multiprocessing.process" in sys.modules:
            sys.modules["multiprocessing.process"].ORIGINAL_DIR = folder  # type: ignore[attr-defined]
        seed()
        shadowed = "" if getattr(sys.flags, "safe_path", False) else self.insert_path(request["script"])
        if shadowed:
            self.send(refused=f"{shadowed} hides an installed module of the same name")
        else:
            self.send(process=os.getpid())
        watch = Watch(self.argv[1], request, self.expected)
        for package in self.expected:
            watch.watch(package)
        for number in (output, self.pipe):
            os.close(number)
        self.lines.close()
        self.socket.close()
        if shadowed:
            os._exit(0)

    def insert_path(self, script: str) -> str:
        """Put the folder of the program first on the path. Return a file in it that hides an imported module, or ""."""
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)) if script else os.getcwd())
        importlib.invalidate_caches()
        for name in [name for name in sys.modules if "." not in name]:
            known = getattr(sys.modules[name], "__spec__", None)
            found = importlib.machinery.PathFinder.find_spec(name, sys.path[:1])
            if known and found and found.origin and found.origin != known.origin:
                return found.origin
        return ""


class WatchedSpec(importlib.machinery.ModuleSpec):
    """The spec of a package that the program has not imported yet, but the process that was forked.

    Whenever a module is imported again, Python reads `_initializing` of its spec. Otherwise, no variable is compared.
    """

    watch: Watch

    def __getattr__(self, name: str) -> bool:
        if name != "_initializing":
            raise AttributeError(name)
        watch = self.watch
        del self.watch
        self.__class__ = importlib.machinery.ModuleSpec  # type: ignore[assignment]
        self._initializing = False
        watch.compare(self.name)
        return False


class Watch:
    """Looks whether the variables at the program's first import of a package are those with which it was imported.

    Args:
        python: The interpreter.
        expected: By package, variables with other values than at the start of the program.
    """

    def __init__(self, python: str, request: dict[str, Any], expected: dict[str, dict[str, str | None]]) -> None:
        self.python, self.request, self.expected = python, request, expected
        self.start = dict(os.environ)
        self.thread = os.getpid(), threading.get_ident()

    def watch(self, package: str) -> None:
        """Compare the variables when `package` is imported."""
        spec = getattr(sys.modules.get(package), "__spec__", None)
        if type(spec) is importlib.machinery.ModuleSpec and spec.name == package:
            vars(spec).pop("_initializing", None)
            vars(spec)["watch"] = self
            spec.__class__ = WatchedSpec

    def compare(self, package: str) -> None:
        """Start the program again as a new process if variables differ, or say so if it has done much."""
        if self.thread != (os.getpid(), threading.get_ident()) or not is_imported_by_program():
            return
        expected, now = {**self.start, **self.expected[package]}, dict(os.environ)
        differing = sorted(name for name in {**expected, **now} if expected.get(name) != now.get(name))
        if not differing:
            return
        names = ", ".join(differing)
        hook = sys.modules.get("searchlight_hook")
        if time.process_time() > LATEST_RESTART_S or (hook and hook.get_connection().is_used):
            print(f"searchlight: {package} was imported with other values of {names}; see --cold", file=sys.stderr)
            return
        print(f"searchlight: begins again as a new process, since {names} of other trials differ", file=sys.stderr)
        with contextlib.suppress(Exception):  # a stream may be closed
            flush()
        os.chdir(self.request["folder"])
        os.execve(self.python, self.request["argv"], self.request["environment"])


def is_imported_by_program() -> bool:
    """Return whether the import at which WatchedSpec is asked is in a file that is no library's."""
    frame: types.FrameType | None = inspect.currentframe()
    for _ in range(3):  # this function, `compare` and the spec
        frame = frame and frame.f_back
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None and not is_library(frame.f_code.co_filename)


def list_open_files() -> set[tuple[str, str]]:
    """Return the number and the path of each open file."""
    opened = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the list itself
            opened.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return opened


def find_thread() -> str:
    """Return which thread would be missing in a forked process, or ""."""
    if list_threads():
        # OpenBLAS ends its threads before a fork, and starts them when they are needed.
        process = os.fork()
        if process == 0:
            os._exit(0)
        os.waitpid(process, 0)
    return "".join(f"starts the thread {name}" for name in list_threads()[:1])


def list_threads() -> list[str]:
    """Return the names of other threads, also of those that Python does not know."""
    names = []
    for number in os.listdir("/proc/self/task"):
        if int(number) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/self/task/{number}/comm", encoding="utf-8") as file:
                names.append(file.read().strip())
    return [name for name in names if name not in HARMLESS_THREADS]


def import_module(name: str) -> str:
    """Import a module. Return the error, or ""."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name + ".").startswith(error.name + "."):
            return ""  # the program has made it, or has found it on a path of its own
        return f"cannot be imported: {error}"
    except BaseException as error:  # modules raise any error, and some exit
        return f"cannot be imported: {type(error).__name__}: {error}"
    return ""


def move(path: str, source: str, target: str) -> str:
    """Return `path` relative to `target` if it is in `source`, as relative paths of PYTHONPATH are."""
    return target + path[len(source) :] if (path + os.sep).startswith(source + os.sep) else path


def flush() -> None:
    """Write what is left in buffers, which forked processes would write again."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    ctypes.CDLL(None).fflush(None)


def seed() -> None:
    """Seed the generators that new processes seed from the system. Python itself does so for `random`."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def run(request: dict[str, Any]) -> int:
    """Run a script or a module as Python's command line does. Return its exit code, or raise what ends it otherwise."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = main  # as multiprocessing does when it is imported
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    try:
        if request["module"]:
            runpy._run_module_as_main(request["module"])  # type: ignore[attr-defined]
        else:
            exec(load(request["script"], main), vars(main))
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            raise  # a message
        return error.code or 0
    except BaseException as error:
        if not request["module"]:  # Python does not do so for modules
            flush()
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
            traceback = traceback.tb_next
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        sys.excepthook = lambda *_: None
        raise  # sets the exit code
    return 0


def load(script: str, main: types.ModuleType) -> types.CodeType:
    """Return the code of a script, and set the attributes of its module."""
    path = script if sys.version_info < (3, 9) else os.path.join(os.getcwd(), script)
    main.__file__, main.__cached__ = path, None  # type: ignore[attr-defined]
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {path!r}: {reason}", file=sys.stderr)
        sys.exit(2)
    return compile(source, path, "exec", dont_inherit=True)


class Ending:
    """The end of a program whose libraries were imported before the fork. It is created before the program begins.

    To free these libraries would take longer than many a trial, and copy their memory. Everything else ends as in
    Python: threads, exit functions, the modules and objects of the program, and open files.
    """

    def __init__(self) -> None:
        self.known = list(sys.modules.values())

    def end(self, code: int) -> None:
        """End this process. Python itself ends one with threads that it has to wait for."""
        if any(not thread.daemon and thread is not threading.main_thread() for thread in threading.enumerate()):
            sys.exit(code)
        with contextlib.suppress(BaseException):  # they are printed, and change no exit code
            atexit._run_exitfuncs()
        threading.excepthook = lambda *_: None
        with contextlib.suppress(Exception):  # a stream may be closed or broken, as for the next ones
            flush()
        sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
        self.release_modules()
        close_files()
        with contextlib.suppress(Exception):
            flush()
        os._exit(code & 0xFF)

    def release_modules(self) -> None:
        """Free what the program has imported and made, as Python does: what is held nevertheless is emptied."""
        known = {id(module) for module in self.known}
        probes = []
        for name, module in list(sys.modules.items()):
            if id(module) not in known:
                del sys.modules[name]
                if isinstance(module, types.ModuleType):
                    probes.append(insert_probe(vars(module)))
        del name, module
        gc.collect()
        for reference in reversed(probes):
            probe = reference()
            if probe is not None:
                empty(probe.__globals__)
            del probe
        gc.collect()


def insert_probe(names: dict[str, Any]) -> weakref.ref[types.FunctionType]:
    """Return a reference to what lives as long as `names`, the content of a module, and knows it."""
    probe = types.FunctionType(insert_probe.__code__, names)
    names["__searchlight__"] = probe
    return weakref.ref(probe)


def empty(names: dict[str, Any]) -> None:
    """Let a module forget its objects, but not its code, which their finalizers use."""
    for name, value in list(names.items()):
        if name != "__builtins__" and not isinstance(value, (types.ModuleType, types.FunctionType, type)):
            names[name] = None


def close_files() -> None:
    """Write what is in the buffers of files that libraries hold open. A file comes before the one that it writes to."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    kept = {id(each) for stream in streams for each in (stream, getattr(stream, "buffer", None))}
    base = io.IOBase.__mro__[1]  # io.IOBase itself would ask each object for its class, and some import then
    found = [each for each in gc.get_objects() if issubclass(type(each), base) and id(each) not in kept]
    native = (io.BufferedWriter, io.BufferedRandom, io.BufferedRWPair)
    for is_next in (
        lambda file: isinstance(file, io.TextIOBase),
        lambda file: not isinstance(file, (io.TextIOBase, io.RawIOBase, *native)),  # such as GzipFile
        lambda file: isinstance(file, native),
    ):
        for file in filter(is_next, found):
            with contextlib.suppress(Exception):  # it is closed, broken or only half made
                file.close()


def serve() -> dict[str, Any]:
    """Return the request of a program in a process that has been forked for it."""
    if sys.path[:1] == [os.path.dirname(os.path.abspath(__file__))]:
        del sys.path[0]
    server = Server(sys.argv[1:])
    server.import_modules()
    return server.serve()


if __name__ == "__main__":
    program = serve()
    ending = Ending()
    ending.end(run(program))
