import contextlib
import json
import os
import queue
import socket
import tempfile
import threading
import time
from pathlib import Path

import pytest

from searchlight.trainables.command.collector import Measurement
from searchlight.trainables.command.listener import HOOK, MetricListener
from searchlight.trainables.command.settings import CommandSettings

SETTINGS = CommandSettings(("train",), "/folder", "/trials", ("loss",))
TIMEOUT = 30  # seconds, for an event that comes at once


@pytest.fixture
def measurements():
    return queue.SimpleQueue()


@pytest.fixture
def listener(measurements):
    with MetricListener(SETTINGS, measurements) as listener:
        yield listener


@contextlib.contextmanager
def connect(listener):
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(TIMEOUT)
        client.connect(listener.address)
        yield client


def encode(**message):
    return json.dumps(message).encode() + b"\n"


def drain(measurements):
    found = []
    while not measurements.empty():
        found.append(measurements.get())
    return found


def wait_until(condition):
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_messages_of_all_processes_are_measurements(listener, measurements):
    with connect(listener) as one, connect(listener) as other:
        one.sendall(encode(**{"from": "TensorBoard", "step": 3, "metrics": {"loss": 0.5}}))
        assert measurements.get(timeout=TIMEOUT) == Measurement("TensorBoard", 3, {"loss": 0.5})
        other.sendall(encode(**{"from": "W&B", "step": None, "metrics": {"loss": float("nan"), "text": "abc"}}))
        source, step, metrics = measurements.get(timeout=TIMEOUT)
        assert (source, step, str(metrics)) == ("W&B", None, "{'loss': nan}")


def test_message_may_come_in_parts(listener, measurements):
    with connect(listener) as client:
        for part in (b'{"from": "x", "me', b'trics": {"loss"', b": 1}}\n"):
            client.sendall(part)
        assert measurements.get(timeout=TIMEOUT) == Measurement("x", None, {"loss": 1})


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b"[1]\n7\nnull\n",
        b'{"metrics": [1]}\n{"metrics": {"loss": [1]}}\n{"metrics": {"loss": 1' + b"0" * 400 + b"}}\n",
        b'{"modules": 7, "process": "x"}\n',
        b"\n\n\n",
    ],
)
def test_garbage_is_ignored(listener, measurements, garbage):
    with connect(listener) as client:
        client.sendall(garbage + encode(metrics={"loss": 2}))
        assert measurements.get(timeout=TIMEOUT).metrics == {"loss": 2}
    assert measurements.empty()


def test_half_message_of_a_process_that_has_ended_is_ignored(listener, measurements):
    with connect(listener) as client:
        client.sendall(b'{"metrics": {"loss": 1}}')
    with connect(listener) as client:
        client.sendall(encode(metrics={"loss": 2}))
        assert measurements.get(timeout=TIMEOUT).metrics == {"loss": 2}


def test_endless_message_ends_its_connection_only(listener, measurements):
    with connect(listener) as endless, connect(listener) as other:
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            endless.sendall(b"x" * 100 * 2**20)
        other.sendall(encode(metrics={"loss": 2}))
        assert measurements.get(timeout=TIMEOUT).metrics == {"loss": 2}


def test_what_was_sent_is_read_before_the_end(measurements):
    with MetricListener(SETTINGS, measurements) as listener:
        for step in range(50):
            with connect(listener) as client:
                client.sendall(encode(step=step, metrics={"loss": 1}) * 100)
    assert len(drain(measurements)) == 5000


def test_process_that_never_closes_does_not_delay_the_end(measurements):
    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        with MetricListener(SETTINGS, measurements) as listener:
            client = stack.enter_context(connect(listener))
            client.sendall(encode(metrics={"loss": 1}))
        assert time.monotonic() - began < TIMEOUT
        assert len(drain(measurements)) == 1
        assert client.recv(1) == b""


def test_nothing_is_left_after_the_end(measurements):
    before = (threading.active_count(), len(os.listdir("/proc/self/fd")))
    with MetricListener(SETTINGS, measurements) as listener, connect(listener) as client:
        client.sendall(encode(can_stop=True))
        wait_until(lambda: listener.can_stop)
        folder = Path(listener.address).parent
        assert folder.stat().st_mode & 0o077 == 0  # other users cannot write to the socket
    assert not folder.exists()
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


def test_folder_with_a_long_path_is_no_obstacle(tmp_path, monkeypatch, measurements):
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with MetricListener(SETTINGS, measurements) as listener, connect(listener) as client:
        client.sendall(encode(metrics={"loss": 1}))
        assert measurements.get(timeout=TIMEOUT)
    assert list(long.iterdir()) == []


def test_only_processes_that_can_stop_are_asked(listener, measurements):
    with connect(listener) as able, connect(listener) as late, connect(listener) as unable:
        able.sendall(encode(can_stop=True))
        wait_until(lambda: listener.can_stop)
        listener.ask_to_stop()
        assert able.recv(100) == b"stop\n"
        late.sendall(encode(can_stop=True))
        assert late.recv(100) == b"stop\n"
        unable.sendall(encode(metrics={"loss": 1}))
        measurements.get(timeout=TIMEOUT)
        unable.setblocking(False)
        with pytest.raises(BlockingIOError):
            unable.recv(100)
    wait_until(lambda: not listener.can_stop)


def test_imported_modules_are_known_by_process(listener):
    with connect(listener) as client:
        client.sendall(encode(process=7, modules=["numpy", "torch", "torch.nn"]))
        wait_until(lambda: listener.modules)
    assert listener.modules == {7: ["numpy", "torch", "torch.nn"]}


def test_output_and_file_are_heard(tmp_path, measurements):
    path = tmp_path / "log.csv"
    settings = CommandSettings(("train",), "/", "/", ("loss",), metrics=("loss=loss ([0-9.]+)",))
    with MetricListener(settings, measurements, str(path)) as listener:
        assert listener.sources == {"loss": "output"}
        listener.read_output("loss 0.5\n")
        assert measurements.get(timeout=TIMEOUT) == Measurement("output", None, {"loss": 0.5})
        path.write_text("step,accuracy\n1,0.9\n2,0.")
        assert measurements.get(timeout=TIMEOUT) == Measurement("log.csv", 1, {"accuracy": 0.9})
    assert drain(measurements) == [Measurement("log.csv", 2, {"accuracy": 0.0})]


def test_environment_keeps_what_the_user_set(listener):
    given = {"PYTHONPATH": "/mine:/others", "WANDB_MODE": "online", "HOME": "/home/me"}
    environment = listener.build_environment(given)
    assert environment == {
        **given,
        "PYTHONPATH": f"{HOOK}:/mine:/others",
        "PYTHONUNBUFFERED": "searchlight",
        "SEARCHLIGHT_SOCKET": listener.address,
    }
    assert listener.build_environment({})["WANDB_MODE"] == "offline"
    assert listener.build_environment({})["PYTHONPATH"] == str(HOOK)
