import contextlib
import errno
import os
import queue
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from searchlight.trainables.command import process
from searchlight.trainables.command.process import MARK, ChildProcess, list_processes, start_process
from searchlight.trainables.filesystem.storage_errors import UnwritableError

SHORT_S = 0.2  # a grace in which no process ends that ignores SIGTERM
LONG_S = 60.0


class Program:
    """A started Python program, and the lines of its output as they come."""

    def __init__(self, code: str, folder: Path, mark: str = "", grace: float = LONG_S) -> None:
        self.lines: queue.Queue[str] = queue.Queue()
        self.output = folder / "output.txt"
        words = [sys.executable, "-u", "-c", textwrap.dedent(code)]
        self.process: ChildProcess = start_process(
            words, {**os.environ, MARK: mark}, folder, self.output, self.lines.put, grace
        )

    def next_line(self) -> str:
        return self.lines.get(timeout=LONG_S)


def wait_until_gone(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(LONG_S)


def test_program_runs_in_its_folder_and_its_output_is_kept(tmp_path):
    program = Program("import os, sys; print(os.getcwd()); print('wrong', file=sys.stderr); sys.exit(3)", tmp_path)
    assert program.process.wait() == program.process.poll() == 3
    program.process.close()
    assert program.next_line() == str(tmp_path.resolve())
    assert program.next_line() == "wrong"
    assert program.output.read_text() == program.process.output.tail() + "\n"


def test_output_follows_what_an_earlier_start_has_written(tmp_path):
    for _ in range(2):
        program = Program("print('one')", tmp_path)
        program.process.wait()
        program.process.close()
    assert program.output.read_text() == "one\none\n"


@pytest.mark.parametrize(
    ("bar", "tail"),
    [
        ("[print(f'{i} %', end=chr(13)) for i in range(100)]", "begin\nend"),
        ("[print(f'{chr(13)}{i} %', end='') for i in range(100)]; print()", "begin\n99 %\nend"),  # as tqdm does
    ],
)
def test_tail_has_the_last_state_of_a_progress_bar_and_the_line_before(tmp_path, bar, tail):
    program = Program(f"print('begin'); {bar}; print('end', end='')", tmp_path)
    program.process.wait()
    program.process.close()
    assert program.process.output.tail() == tail
    assert [program.next_line() for _ in range(102)][1] == "0 %"


def test_wait_returns_none_while_the_program_runs(tmp_path):
    program = Program("print('up'); input() if False else __import__('time').sleep(600)", tmp_path)
    assert program.next_line() == "up"
    assert program.process.wait(0) is None
    program.process.stop()
    assert program.process.poll() == -signal.SIGTERM


def test_program_that_ignores_sigterm_is_killed_after_its_grace(tmp_path):
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)"
    program = Program(code, tmp_path, grace=SHORT_S)
    assert program.next_line() == "up"
    program.process.stop()
    assert program.process.poll() == -signal.SIGKILL


def test_program_can_end_in_order(tmp_path):
    code = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (print("saved"), sys.exit(0)))
        print("up")
        time.sleep(600)
    """
    program = Program(code, tmp_path)
    assert program.next_line() == "up"
    program.process.stop()
    assert program.process.poll() == 0
    assert program.next_line() == "saved"


START_CHILD = """
    import subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session={session})
    print(child.pid)
    {rest}
"""


@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize("rest", ["", "time.sleep(600)"])
def test_what_the_program_started_ends_with_it(tmp_path, session, rest):
    program = Program(START_CHILD.format(session=session, rest=rest), tmp_path, mark=str(tmp_path))
    child = int(program.next_line())
    if rest:
        program.process.stop()
    else:
        program.process.wait()
        program.process.close()
    wait_until_gone(child)
    assert list_processes(program.process.pid, str(tmp_path)) == []


def test_program_ends_if_the_process_that_started_it_is_killed(tmp_path):
    code = f"""
        import time
        from pathlib import Path
        from searchlight.trainables.command.process import start_process

        words = ["{sys.executable}", "-c", "import time; time.sleep(600)"]
        print(start_process(words, {{}}, Path("."), Path("inner.txt")).pid, flush=True)
        time.sleep(600)
    """
    outer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, cwd=tmp_path)
    assert outer.stdout is not None
    inner = int(outer.stdout.readline())
    assert psutil.pid_exists(inner)
    outer.kill()
    outer.wait()
    outer.stdout.close()
    wait_until_gone(inner)


def test_missing_program_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        start_process(["no-such-program"], {}, tmp_path, tmp_path / "output.txt")


def test_long_output_keeps_its_begin_and_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "LARGEST_OUTPUT", 4000)
    blocks = "for n in range(2000): print(n, flush=n % 400 == 0)"  # each of them makes the file too large again
    program = Program(blocks, tmp_path)
    assert program.process.wait() == 0
    program.process.close()
    begin, note, end = re.split(r"\n--- searchlight: (\d+) bytes are left out here ---\n", program.output.read_text())
    assert len(begin + end) < 5000
    assert begin.startswith("0\n1\n2\n")
    assert end.endswith("1998\n1999\n")
    assert len(begin) + int(note) + len(end) == sum(len(f"{n}\n") for n in range(2000))
    assert program.lines.qsize() == 2000, "all are read"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EISDIR])
def test_output_is_read_on_if_its_file_takes_none(tmp_path, number):
    if number == errno.ENOSPC:
        (tmp_path / "output.txt").symlink_to("/dev/full")
    else:
        (tmp_path / "output.txt").mkdir()
    program = Program("for n in range(20000): print(n)", tmp_path)  # more than a pipe holds
    assert program.process.wait(LONG_S) == 0
    program.process.close()
    assert [program.lines.get_nowait() for _ in range(20000)] == [str(n) for n in range(20000)]
    error = program.process.output.error
    assert isinstance(error, UnwritableError)
    assert (error.errno, error.filename) == (number, str(program.output))


RANKS = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"rank %d\\n" % os.getpid())  # at once: with PYTHONUNBUFFERED, print writes in parts, and ranks mix
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True], ids=["a stop", "a killed launcher"])
def test_ranks_that_outlive_torchrun_are_ended_after(is_killed, tmp_path):
    (tmp_path / "train.py").write_text(RANKS)
    lines: queue.Queue[str] = queue.Queue()
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py"]
    environment = {**os.environ, MARK: str(tmp_path), "OMP_NUM_THREADS": "1"}
    launcher = start_process(words, environment, tmp_path, tmp_path / "output.txt", lines.put, SHORT_S)
    ranks: list[psutil.Process] = []
    while len(ranks) < 2:
        line = lines.get(timeout=LONG_S)
        ranks += [psutil.Process(int(line.split()[1]))] if line.startswith("rank ") else []
    assert {os.getpgid(rank.pid) for rank in ranks} - {launcher.pid}, "they have left its group"
    if is_killed:
        os.kill(launcher.pid, signal.SIGKILL)
        launcher.wait()
        launcher.close()
    else:
        launcher.stop()
    assert not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks)
    assert list_processes(launcher.pid, str(tmp_path)) == []
