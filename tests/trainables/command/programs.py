"""Runs small programs as a trial does, and gathers what is heard."""

import os
import queue
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from searchlight.trainables.command.collector import Measurement
from searchlight.trainables.command.listener import MetricListener
from searchlight.trainables.command.settings import CommandSettings

SETTINGS = CommandSettings(("train",), "/", "/", ("loss",))
ROOT = Path(__file__).resolve().parents[3]
TIMEOUT = 300  # seconds; imports take long on a busy machine


@dataclass
class Outcome:
    code: int
    output: str
    measurements: list[Measurement]
    modules: list[str]  # that the main process imported
    could_stop: bool

    @property
    def heard(self) -> list[tuple[str, float | None, dict[str, float]]]:
        return [(found.source, found.step, dict(found.metrics)) for found in self.measurements]


def run_program(folder, text, *arguments, python=(), stop_after=None, settings=SETTINGS, **variables):
    """Run a Python program to its end. Ask it to stop after some measurements."""
    (folder / "program.py").write_text(text)
    return run_command(folder, [sys.executable, *python, "program.py", *arguments], stop_after, settings, **variables)


def run_command(folder, words, stop_after=None, settings=SETTINGS, **variables):
    measurements, heard, could_stop = queue.SimpleQueue(), [], False
    given = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW")}
    with MetricListener(settings, measurements) as listener:
        environment = listener.build_environment(
            {**given, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
        )
        process = subprocess.Popen(
            words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        killer = threading.Timer(TIMEOUT, process.kill)
        killer.start()
        try:
            while stop_after and len(heard) < stop_after and process.poll() is None:
                try:
                    heard.append(measurements.get(timeout=1))
                except queue.Empty:
                    continue
                if len(heard) == stop_after:
                    could_stop = listener.can_stop
                    listener.ask_to_stop()
            output, _ = process.communicate()
        finally:
            killer.cancel()
            process.kill()
    while not measurements.empty():
        heard.append(measurements.get())
    return Outcome(process.returncode, output, heard, listener.modules.get(process.pid, []), could_stop)
