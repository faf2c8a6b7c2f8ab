"""Machines of a test's own on this one: each with its own network, processes and disk, joined by a switch.

Linux namespaces, which need root. What is sent goes from one of them to another, and never out.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc")


def why_not() -> str:
    """Why there can be none here; empty: there can."""
    if os.getuid() != 0:
        return "network namespaces need root"
    missing = [program for program in ("ip", "unshare", "nsenter", "setpriv") if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    tried = subprocess.run(["unshare", *NAMESPACES, "--fork", "true"], capture_output=True, text=True)
    return tried.stderr.strip()


class Host:
    """One machine. `disk` is a path that all of them have, each with its own content."""

    def __init__(self, network: "Network", number: int) -> None:
        self.ip, self.disk = f"{network.prefix}.{number}", network.disk
        script = f"mount -t tmpfs none {self.disk} && mount -t tmpfs none /dev/shm && exec sleep infinity"
        self._holder, self._inside = _hold(*NAMESPACES, "--mount-proc", script=script)
        network.plug_in(self._inside, "eth0", number)
        for words in (["link", "set", "lo", "up"], ["addr", "add", f"{self.ip}/24", "dev", "eth0"]):
            self.run("ip", *words)
        self.run("ip", "link", "set", "eth0", "up")

    def start(self, *command: str | Path, env: Mapping[str, str] | None = None, **options) -> subprocess.Popen:
        enter = ["nsenter", "--target", self._inside, *NAMESPACES, f"--wdns={self.disk}"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        return subprocess.Popen([*enter, *map(str, command)], env=env, **pipes)

    def run(self, *command: str | Path, env: Mapping[str, str] | None = None, timeout: float = 60) -> str:
        """What it printed."""
        process = self.start(*command, env=env)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"{command} took more than {timeout} s:\n{out}\n{err}") from None
        assert process.returncode == 0, f"{command}:\n{out}\n{err}"
        return out

    def find_processes(self, word: str) -> list[psutil.Process]:
        """Its processes with `word` in their command line."""
        found = []
        for process in psutil.Process(int(self._inside)).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if word in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def unplug(self) -> None:
        """As if its power had gone: all of its processes at once."""
        _release(self._holder, self._inside)


class Network:
    """A switch, and the machines at it. This one is at it too, as `ip`: servers that all are to reach listen there.

    The switch is in a namespace too. So nothing of it is left when the process that made it is killed.
    """

    def __init__(self) -> None:
        self.disk = Path(tempfile.mkdtemp(prefix="disk-", dir="/tmp"))
        self._hosts: list[Host] = []
        self._holder, self._inside = _hold("--net", script="exec sleep infinity")
        self._ip("link", "add", "switch", "type", "bridge")
        self._ip("link", "set", "switch", "up")
        self._uplink = f"uplink{os.getpid()}"
        self.plug_in(str(os.getpid()), self._uplink, 254)
        with open(Path(tempfile.gettempdir(), "searchlight-tests-network.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # tests that begin at the same time must not choose the same addresses
            self.prefix = _free_prefix()
            self.ip = f"{self.prefix}.254"
            _ip("addr", "add", f"{self.ip}/24", "dev", self._uplink)
        _ip("link", "set", self._uplink, "up")

    def host(self) -> Host:
        """One more."""
        self._hosts.append(Host(self, len(self._hosts) + 1))
        return self._hosts[-1]

    def plug_in(self, process: str, interface: str, number: int) -> None:
        """Lay a cable from the switch to a new `interface` of the machine that `process` runs on."""
        self._ip("link", "add", f"port{number}", "type", "veth", "peer", "name", interface, "netns", process)
        self._ip("link", "set", f"port{number}", "master", "switch", "up")

    def remove(self) -> None:
        for host in self._hosts:
            host.unplug()
        _ip("link", "delete", self._uplink)  # Linux does so too, but only some time after the switch has ended
        _release(self._holder, self._inside)
        shutil.rmtree(self.disk)

    def _ip(self, *words: str) -> None:
        _ip(*words, prefix=["nsenter", "--target", self._inside, "--net"])


def _hold(*namespaces: str, script: str) -> tuple[subprocess.Popen, str]:
    """Start a process in new namespaces, that ends with this one. Its `script` ends in `sleep`.

    Returns:
        The process outside of them, and the id of the first one inside.
    """
    kept = ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, "--fork", "--kill-child", "sh", "-c", script]
    holder = subprocess.Popen(kept, start_new_session=True, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        if children and Path(f"/proc/{children[0]}/comm").read_text().strip() == "sleep":
            return holder, children[0]
        time.sleep(0.02)
    raise TimeoutError("a namespace did not come up")


def _release(holder: subprocess.Popen, inside: str) -> None:
    with suppress(ProcessLookupError):
        os.kill(int(inside), signal.SIGKILL)
    holder.wait(timeout=20)


def _free_prefix() -> str:
    """The first three numbers of addresses that this machine has nowhere: another run of the tests may have some."""
    used = _ip("-4", "-oneline", "addr")
    return next(prefix for prefix in (f"10.213.{number}" for number in range(256)) if f" {prefix}." not in used)


def _ip(*words: str, prefix: Sequence[str] = ()) -> str:
    done = subprocess.run([*prefix, "ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout
