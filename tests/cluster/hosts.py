"""Machines of a test's own on this one: each with its own network, processes and disk, joined by a switch.

Linux namespaces, which need root. What is sent goes from one of them to another, and never out.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

PREFIX = "10.213.7"
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

    def __init__(self, switch: str, disk: Path, number: int) -> None:
        self.ip, self.disk = f"{PREFIX}.{number}", disk
        self._link = f"{switch}-{number}"
        script = f"mount -t tmpfs none {disk} && mount -t tmpfs none /dev/shm && exec sleep infinity"
        command = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            *NAMESPACES,
            "--fork",
            "--mount-proc",
            "--kill-child",
            "sh",
            "-c",
            script,
        ]
        self._holder = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
        self._inside = self._first_process()
        _ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._inside)
        _ip("link", "set", self._link, "master", switch, "up")
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

    def unplug(self) -> None:
        """As if its power had gone: all of its processes at once."""
        with suppress(ProcessLookupError):
            os.kill(int(self._inside), signal.SIGKILL)
        self._holder.wait(timeout=20)

    def _first_process(self) -> str:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
            if children and Path(f"/proc/{children[0]}/comm").read_text().strip() == "sleep":
                return children[0]
            time.sleep(0.02)
        raise TimeoutError("a namespace did not come up")


class Network:
    """A switch, and the machines at it. This one is at it too, as `ip`: servers that all are to reach listen there."""

    ip = f"{PREFIX}.254"

    def __init__(self) -> None:
        self.disk = Path(tempfile.mkdtemp(prefix="disk-", dir="/tmp"))
        self._switch = f"s{os.getpid()}"
        self._hosts: list[Host] = []
        _ip("link", "add", self._switch, "type", "bridge")
        _ip("link", "set", self._switch, "up")
        _ip("addr", "add", f"{self.ip}/24", "dev", self._switch)

    def host(self) -> Host:
        """One more."""
        self._hosts.append(Host(self._switch, self.disk, len(self._hosts) + 1))
        return self._hosts[-1]

    def remove(self) -> None:
        for host in self._hosts:
            host.unplug()
        _ip("link", "del", self._switch)
        shutil.rmtree(self.disk)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
