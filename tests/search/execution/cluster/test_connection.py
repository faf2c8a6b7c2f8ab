"""Find out that a Ray which this process has started is lost."""

import io
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from searchlight.search.execution.cluster.connection import (
    RayOutputFilter,
    _describe_failed_start,
    find_lost_process,
)


@pytest.fixture
def local_ray(monkeypatch):
    """A Ray with two real processes, and a real port for that of its GCS."""
    command = [sys.executable, "-c", "input()"]
    processes = {name: subprocess.Popen(command, stdin=subprocess.PIPE) for name in ("log_monitor", "raylet")}
    port = socket.create_server(("127.0.0.1", 0))
    node = SimpleNamespace(
        all_processes=processes,
        dead_processes=lambda: [(name, process) for name, process in processes.items() if process.poll() is not None],
        gcs_address=f"127.0.0.1:{port.getsockname()[1]}",
    )
    monkeypatch.setattr("ray._private.worker._global_node", node)
    yield SimpleNamespace(**processes, port=port)
    port.close()
    for process in processes.values():
        process.kill()
        process.communicate()


def test_ray_without_a_log_monitor_is_not_lost(local_ray):
    local_ray.log_monitor.kill()
    local_ray.log_monitor.wait()
    assert find_lost_process() == ""


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda process: process.send_signal(signal.SIGKILL), "was killed by SIGKILL"),
        (lambda process: process.communicate(b"\n"), "ended with exit code 0"),
    ],
)
def test_ray_without_its_raylet_is_lost(local_ray, end, how):
    end(local_ray.raylet)
    local_ray.raylet.wait()
    assert find_lost_process() == f"the raylet of Ray on this machine {how}"


def test_ray_whose_gcs_refuses_connections_is_lost(local_ray):
    assert find_lost_process() == ""
    local_ray.port.close()
    assert find_lost_process() == "the gcs_server of Ray on this machine was stopped"


def test_failed_start_names_the_last_error_of_the_log(tmp_path):
    logs = tmp_path / "ray" / "session_1" / "logs"
    logs.mkdir(parents=True)
    error = "[2026-11-22 10:12:00,343 C 12 12] (raylet) node.cc:9: Check failed: out of memory"
    (logs / "raylet.out").write_text(
        f"[2026-11-22 10:12:00,300 I 12 12] (raylet) main.cc:1: hello\n{error}\n*** trace\n"
    )
    assert _describe_failed_start(RuntimeError("Timed  out\nhere."), tmp_path) == f"Timed out here; {error}"


@pytest.mark.parametrize("is_joined", [False, True])
def test_ray_tells_of_a_lost_node_on_a_cluster_only(is_joined):
    shown = io.StringIO()
    first_line = "(raylet) The node with node id: f1 has been marked dead. This can happen when "
    filtered = RayOutputFilter(shown, is_joined)
    for text in (f"{first_line}\n(1) raylet crashes\n", "\n", "(raylet) Raylet is terminated", "\n", "other\n"):
        filtered.write(text)
    assert shown.getvalue() == (f"{first_line}\n" if is_joined else "") + "other\n"
