"""Starts Ray on this machine for a search, or joins the cluster that the search was submitted to."""

import atexit
import gc
import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import ray
from ray.job_config import JobConfig

from searchlight.search import private_api
from searchlight.search.errors import StoreError
from searchlight.search.execution.cluster.head_watch import HeadWatch, extend_reconnect_time
from searchlight.search.execution.cluster.local_machine import count_available_cpus, uses_existing_cluster
from searchlight.search.execution.cluster.session_cleanup import end_session_processes, remove
from searchlight.search.folder.locations import process_folder
from searchlight.trainables.registry import link_modules

logger = logging.getLogger(__name__)
LOGGED_ERROR = re.compile(r"\[[^]]+ [EFC] \d").match  # a line of level error, fatal or critical
_head: HeadWatch | None = None  # of the cluster that this process has joined
# What a process of Ray may log, of each stream: the present file and one before it. Ray's default is no limit.
LOG_LIMITS = {"RAY_ROTATION_MAX_BYTES": str(8 * 2**20), "RAY_ROTATION_BACKUP_COUNT": "1"}
OBJECT_STORE_BYTES = 256 * 2**20  # only reports use it; Ray's default is a third of the memory


@contextmanager
def ray_session(code: Path | None) -> Iterator[None]:
    """Start Ray on this machine unless RAY_ADDRESS names a cluster. Shut it down afterwards.

    Args:
        code: The folder with the search's copy of the task's modules, which workers import in addition to this project.
            The user may edit the originals. It does not exist if the task is an installed one. None for a command.
    """
    with ExitStack() as services:
        # Outermost, since Ray's threads print until it has shut down.
        services.enter_context(redirect_stdout(RayOutputFilter(sys.stderr, uses_existing_cluster())))
        if uses_existing_cluster():
            # Ray uploads both, so that its nodes run this version.
            _join_cluster(code, services)
        else:
            _start_local_cluster(code, services)
        services.callback(shut_down)
        services.callback(_cancel_color_reset)
        yield


def _join_cluster(code: Path | None, services: ExitStack) -> None:
    global _head
    folder = services.enter_context(tempfile.TemporaryDirectory(dir=process_folder()))
    links = link_modules(Path(folder, "modules"), code).iterdir()
    with _restored_environment():
        limit_s = extend_reconnect_time()
        _init_ray(runtime_env={"py_modules": [str(link) for link in links]})
    services.callback(_forget_head)
    _head = services.enter_context(HeadWatch(private_api.ray_node.gcs_address, limit_s))


def _forget_head() -> None:
    global _head
    _head = None


@contextmanager
def _restored_environment() -> Iterator[dict[str, str]]:
    """Yield the environment of this process, and restore it when the block ends."""
    before = dict(os.environ)
    try:
        yield before
    finally:
        os.environ.clear()
        os.environ.update(before)


def _start_local_cluster(code: Path | None, services: ExitStack) -> None:
    folder = tempfile.mkdtemp(prefix="searchlight-", dir=os.environ.get("RAY_TMPDIR", "/tmp"))
    # Another process removes the folder, also if this one is killed.
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("session_cleanup.py")), folder]
    janitor = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, text=True)
    services.enter_context(janitor)
    # After an error, the janitor also ends Ray's remaining processes.
    services.push(lambda kind, *_: janitor.communicate("" if kind else "ended") and None)
    links = link_modules(Path(folder, "modules"), code)
    with _restored_environment() as before:
        # Set in this process, since with a `runtime_env`, Ray cannot start worker processes in advance.
        os.environ.update({name: value for name, value in LOG_LIMITS.items() if name not in before})
        os.environ["PYTHONPATH"] = os.pathsep.join([str(links), *filter(None, [before.get("PYTHONPATH")])])
        # As Tune sets it: Lightning must not fork a process that runs Ray.
        os.environ.setdefault("PL_DISABLE_FORK", "1")
        try:
            _create_private_token()
            _start_ray(Path(folder))
        except Exception as error:  # Ray raises various types, also plain exceptions
            reason = _describe_failed_start(error, Path(folder))
            raise StoreError(f"Ray did not start on this machine: {reason}") from error


def _start_ray(folder: Path) -> None:
    """Start Ray with its files in `folder`. Try it twice: on a busy machine, its raylet gives up after 15 s.

    It waits so long for the ports of its agents, and no setting of Ray 2.60 changes that.
    """
    for may_retry in (True, False):
        try:
            with _restored_environment(), _contain_processes(), _leave_out_servers():
                return _init_ray(
                    address="local",
                    num_cpus=count_available_cpus(),
                    object_store_memory=OBJECT_STORE_BYTES,
                    include_dashboard=False,
                    # Ray makes it writable for every user, but its parent is private.
                    _temp_dir=str(folder / "ray"),
                )
        except Exception as error:  # Ray raises various types, also plain exceptions
            if not may_retry:
                raise
            logger.warning("Ray is started again, since it did not start: %s", _describe_failed_start(error, folder))
        # Nothing of the first try may be left.
        ray.shutdown()
        end_session_processes(folder, grace_s=0.0)
        remove(folder / "ray")


@contextmanager
def _contain_processes() -> Iterator[None]:
    """Bind Ray's processes to this machine and protect them from signals. Kill them if Ray does not start.

    Each gets its own session: a signal to the driver's process group, such as Ctrl-C in a terminal, must not end Ray
    before the trials.
    """
    services, constants = private_api.ray_services, private_api.ray_constants
    popen, listens_everywhere = services.ConsolePopen, constants.ENABLE_RAY_CLUSTER
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        # On other systems, Ray needs the process group to end its processes if the driver is killed.
        process: subprocess.Popen[bytes] = popen(*arguments, **options, start_new_session=sys.platform == "linux")
        started.append(process)
        return process

    services.ConsolePopen = start
    constants.ENABLE_RAY_CLUSTER = False  # else the processes listen on all interfaces
    os.environ[constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"  # the same for the processes
    try:
        yield
    except BaseException:  # also Ctrl-C
        for process in started:
            process.kill()
            process.wait()
        raise
    finally:
        services.ConsolePopen = popen
        constants.ENABLE_RAY_CLUSTER = listens_everywhere


@contextmanager
def _leave_out_servers() -> Iterator[None]:
    """Start Ray without what no search on one machine uses, since it takes a third of the time that Ray needs to start.

    The API server answers the dashboard and `ray list`, the log monitor copies logs to drivers, and the monitor scales
    clusters. `ray.init` has no option for the latter, and starts the server also without the dashboard.
    """
    parameter, services = private_api.ray_parameter, private_api.ray_services
    create, start_api_server = parameter.RayParams, services.start_api_server
    parameter.RayParams = partial(create, no_monitor=True, include_log_monitor=False)
    services.start_api_server = lambda *_, **__: (None, None)  # what Ray's own returns if it could not start
    try:
        yield
    finally:
        parameter.RayParams, services.start_api_server = create, start_api_server


def _describe_failed_start(error: Exception, folder: Path) -> str:
    """Return Ray's error and the last error in its logs below `folder`, as one line."""
    logs = sorted(folder.glob("ray/session_*/logs/*.*"), key=lambda file: file.stat().st_mtime)
    errors = [line for file in logs for line in file.read_text(errors="replace").splitlines() if LOGGED_ERROR(line)]
    return "; ".join([" ".join(str(error).split()).rstrip("."), *errors[-1:]])


def find_lost_process() -> str:
    """Return which process of this driver's Ray has ended, and how, or that the head of its cluster is lost, or ""."""
    node = private_api.ray_node
    if node is None or not node.all_processes:  # a cluster started them
        return "" if _head is None else _head.describe_loss()
    for name, process in node.dead_processes():
        if name in ("gcs_server", "raylet"):
            code = process.returncode
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            return f"the {name} of Ray on this machine {how}"
    host, _, port = node.gcs_address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except ConnectionRefusedError:  # after SIGTERM: it waits for connections to end
        return "the gcs_server of Ray on this machine was stopped"
    except TimeoutError:  # it is busy
        pass
    return ""


def join_thread(thread: threading.Thread) -> None:
    """Wait for a thread that calls Ray, since Ray aborts a process that calls it during its shutdown.

    If Ray is lost, do not wait: its calls would take a minute and then abort this process.
    """
    thread.join(0.0 if find_lost_process() else None)


def _create_private_token() -> None:
    """Create Ray's token so that only this user can read it. Ray's own mode lets every user read it."""
    path = Path.home() / ".ray" / "auth_token"
    if path.exists():
        if path.stat().st_mode & 0o077 and path.stat().st_uid == os.getuid():
            path.chmod(0o600)
    elif (
        not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & {*os.environ} and os.environ.get("RAY_AUTH_MODE") != "disabled"
    ):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor, unfinished = tempfile.mkstemp(dir=path.parent)  # with mode 0600
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        with suppress(FileExistsError):  # a concurrent search has created the token
            os.link(unfinished, path)
        os.unlink(unfinished)


def _init_ray(**options: Any) -> None:
    """Start or join Ray, and keep the search's signal handlers.

    Ray's handler in Python would end this process if SIGTERM came before Ray has started: the search would have no
    summary. Its handler in C++, which replaces this process's, prints a stack first, and may abort the process.
    """
    utils = private_api.ray_utils
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    install, utils.set_sigterm_handler = utils.set_sigterm_handler, lambda handler: None
    ray_logger = logging.getLogger(ray.init.__module__)
    ray_logger.addFilter(_is_no_handler_warning)
    try:
        ray.init(job_config=_JobConfig(), log_to_driver=False, logging_level=logging.WARNING, **options)
    finally:
        utils.set_sigterm_handler = install
        ray_logger.removeFilter(_is_no_handler_warning)
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def _is_no_handler_warning(record: logging.LogRecord) -> bool:
    """Return False for the warning that another thread than the main one sets no handler, which is not wanted here."""
    return "SIGTERM handler is not set" not in record.getMessage()


def shut_down() -> None:
    """Shut Ray down without garbage collection: Ray aborts a process that frees its references in another thread."""
    gc.collect()
    gc.disable()
    try:
        ray.shutdown()
    finally:
        gc.enable()


def _cancel_color_reset() -> None:
    """Cancel the escape code that colorama, which Ray loads, writes at exit."""
    # Ray's bundled copy, which can be imported after Ray.
    from colorama.initialise import reset_all  # type: ignore[import-untyped]

    atexit.unregister(reset_all)


class _JobConfig(JobConfig):
    """The config of a job whose workers import modules only from PYTHONPATH and `py_modules`.

    Ray would put the driver's current folder and the folder of its script first. A file there could hide our modules,
    or the copy of the task's modules.
    """

    def _get_proto_job_config(self) -> Any:
        self._py_driver_sys_path: list[str] = []
        return super()._get_proto_job_config()  # type: ignore[no-untyped-call]


class RayOutputFilter:
    """Filters Ray's warnings on standard output that are not useful to the user.

    A gang has six worker processes by design. Gangs report the end of a worker in one line, and the search that of Ray.

    Args:
        is_joined: Whether Ray has other nodes than this machine. A line about a lost one is kept.
    """

    DROPPED = (
        "worker processes have been started",
        "A worker died or was killed while executing",
        "Raylet is terminated",
    )

    def __init__(self, stream: TextIO, is_joined: bool) -> None:
        self._stream = stream
        self._unwanted = self.DROPPED if is_joined else (*self.DROPPED, "has been marked dead")
        self._dropped = False

    def write(self, text: str) -> int:
        ends_dropped = self._dropped and text == "\n"
        self._dropped = any(unwanted in text for unwanted in self._unwanted)
        if "(raylet)" in text and "\n" in text.rstrip():
            text = text.partition("\n")[0]  # without the log of a lost node
        if not self._dropped and not ends_dropped:
            self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
