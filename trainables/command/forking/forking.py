"""A process that has imported what programs need, and forks a new process for each program.

It runs in the interpreter of the program. Therefore it imports only the standard library, and nothing of this package.
Its arguments are a socket, the interpreter and the interpreter's options. Its current folder is its own, and holds
PLAN. What it sends are lines of JSON; what it gets are lines of JSON, each after a file descriptor for the output.
"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import itertools
import json
import os
import socket
import sys
from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))
if FOLDER not in sys.path:  # as with -P; `serve` removes it
    sys.path.insert(0, FOLDER)

from searchlight_ending import Ending
from searchlight_process import find_thread, flush, is_library, list_open_files
from searchlight_program import run
from searchlight_watch import Watch

PLAN = "plan.json"
MOST_DROPPED = 4  # modules, since each one costs a new start with all imports


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
        thread: str = find_thread()
        return thread

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


def seed() -> None:
    """Seed the generators that new processes seed from the system. Python itself does so for `random`."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def serve() -> dict[str, Any]:
    """Return the request of a program in a process that has been forked for it."""
    if sys.path[:1] == [FOLDER]:
        del sys.path[0]
    server = Server(sys.argv[1:])
    server.import_modules()
    return server.serve()


if __name__ == "__main__":
    program = serve()
    ending = Ending()
    ending.end(run(program))
