"""A program that is forked behaves like a new process, and does not import what is imported already."""

import gzip
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import psutil
import pytest

from searchlight.trainables.command.fork_server import ForkServer, PythonCommand, parse_python_command
from searchlight.trainables.command.process import list_processes, open_process, start_process

LIBRARY = """
import os
PROCESS = os.getpid()
VALUE = 1
os.environ["SET_BY_LIBRARY"] = "yes"
"""
PROGRAM = """
import atexit, inspect, multiprocessing, os, pickle, signal, sys, threading, time
import slow

class Model:
    pass

def square(x):
    return x * x

def stop(*_):
    print("asked to stop")
    sys.exit(0)

if __name__ == "__main__":
    atexit.register(print, "at the end")
    case = sys.argv[1]
    print(sys.argv, sys.path[0], __file__, __spec__ and __spec__.name, __annotations__, __builtins__)
    print(sys.orig_argv[1:], sys.flags, sys.warnoptions)
    print(os.getcwd(), os.getpid() == os.getsid(0), os.environ["SET_BY_LIBRARY"], sys.stdin.read(), sys.stdout)
    print(sorted(os.listdir("/proc/self/fd")), sys.stdout.seekable(), threading.active_count(), signal.getsignal(2))
    if case == "exit": sys.exit(3)
    if case == "message": sys.exit("a message")
    if case == "interrupt": raise KeyboardInterrupt
    if case == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if case == "abrupt": os._exit(7)
    if case == "output": print("x" * 10**6)
    if case == "handler":
        signal.signal(signal.SIGTERM, stop)
        os.kill(os.getpid(), signal.SIGTERM)
    if case == "hook":
        sys.excepthook = lambda kind, error, traceback: print(kind, traceback.tb_frame.f_code.co_filename)
        1 / 0
    if case == "error":
        try:
            1 / 0
        except ZeroDivisionError as error:
            raise ValueError("the second") from error
    if case == "processes":
        for method in ("fork", "spawn"):
            with multiprocessing.get_context(method).Pool(1) as pool:
                print(pool.map(square, [3]))
    if case == "own":
        print(inspect.getsource(square), type(pickle.loads(pickle.dumps(Model()))), open("program.py").readline())

"""
CASES = ["exit", "message", "interrupt", "kill", "abrupt", "output", "handler", "hook", "error", "processes", "own"]
RUN = "import os, slow; print(slow.PROCESS == os.getpid())"


class Gang:
    """A folder with a program, a library, and what starts the program."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.libraries = folder / "site-packages"
        self.folder = folder / "user"
        self.libraries.mkdir()
        self.folder.mkdir()
        self.notes: list[str] = []
        self.server = ForkServer(self.notes.append)
        self.environment = {**environment, "PYTHONPATH": str(self.libraries)}
        self.add_library("slow", LIBRARY)
        self.add_program("program.py", PROGRAM)

    def add_library(self, name: str, text: str) -> None:
        (self.libraries / f"{name}.py").write_text(text)

    def add_program(self, name: str, text: str) -> None:
        (self.folder / name).write_text(textwrap.dedent(text))

    def prepare(self, *modules: str, options: tuple[str, ...] = (), variables=None) -> bool:
        """Return whether the next program is forked."""
        argv = [sys.executable, *options, "program.py"]
        self.server.prepare(argv, self.environment, self.folder, modules or ("slow",), variables)
        return self.server.wait()

    def run(self, *words: str, create=None, **environment: str) -> tuple[int | None, str]:
        """Run a program to its end. Return its exit code and its output."""
        output = self.folder.parent / "output.txt"
        output.unlink(missing_ok=True)
        places = {**self.environment, **environment}, self.folder, output
        process = start_process([sys.executable, *words], *places, create=create or self.server.open_process)
        code = process.wait()
        process.close()
        return code, output.read_text()


@pytest.fixture
def gang(tmp_path):
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    gang = Gang(tmp_path, environment)
    yield gang
    gang.server.close()


@pytest.mark.parametrize("options", [(), ("-u", "-W", "error::UserWarning", "-X", "dev")])
def test_forked_program_does_what_a_new_process_does(gang, options):
    assert gang.prepare("slow", "multiprocessing.pool", "inspect", options=options)
    for words in [["program.py", case] for case in CASES] + [["./program.py", "own"], ["-m", "program", "error"]]:
        expected = gang.run(*options, *words, create=open_process)
        assert gang.run(*options, *words) == expected, words
    assert gang.notes == []


@pytest.mark.parametrize("text", ["def f(:\n", "raise SystemExit", "#" * 10 + "\nimport missing_module"])
def test_program_that_cannot_run_says_what_python_says(gang, text):
    assert gang.prepare()
    gang.add_program("other.py", text)
    for words in [("other.py",), ("missing.py",), ("-m", "missing"), ("-m", "other")]:
        assert gang.run(*words) == gang.run(*words, create=open_process)


def test_forked_program_uses_the_imports_of_the_server(gang):
    gang.add_program("run.py", RUN)
    assert gang.run("run.py") == (0, "True\n")
    assert gang.prepare()
    assert gang.run("run.py") == (0, "False\n")


def test_program_sees_nothing_of_the_one_before(gang):
    text = "import os, slow; print(slow.VALUE, 'A' in os.environ); slow.VALUE, os.environ['A'] = 2, ''"
    gang.add_program("run.py", text)
    assert gang.prepare()
    assert [gang.run("run.py") for _ in range(2)] == [(0, "1 False\n")] * 2


def test_generators_start_differently_in_each_program(gang):
    gang.add_program("run.py", "import random, numpy as np; print(random.random(), np.random.rand())")
    assert gang.prepare("numpy", "numpy.random")
    outputs = {gang.run("run.py")[1] for _ in range(2)}
    assert len({number for output in outputs for number in output.split()}) == 4


def test_variables_of_a_trial_reach_its_program(gang):
    gang.add_program("run.py", "import os; print(os.environ['SEARCHLIGHT_TRIAL'], 'SEARCHLIGHT_SOCKET' in os.environ)")
    assert gang.prepare()
    for trial in "12":
        assert gang.run("run.py", SEARCHLIGHT_TRIAL=trial) == (0, f"{trial} False\n")


ENDS = """
    import atexit, gzip, io, os, sys, tempfile, threading, time
    import slow, beside

    class Saver:
        def __init__(self, name):
            self.name = name

        def __del__(self):
            print("freed", self.name, os.getcwd() != "", flush=True)

    class Tee:
        def write(self, text):
            sys.__stdout__.write("tee: " + text)

        def flush(self):
            sys.__stdout__.flush()

    def work():
        time.sleep(0.1)
        print("thread has ended", file=sys.__stdout__)

    def loop():
        while True:
            time.sleep(0.001)
            str(work)

    def fail():
        raise ValueError("at exit")

    text, binary = open("text.txt", "w"), open("binary", "wb")
    packed = gzip.open("text.gz", "wt")
    slow.KEPT = [open("kept.txt", "w"), gzip.open("kept.gz", "wt"), io.TextIOWrapper(open("kept", "wb"))]
    for file in (text, packed, *slow.KEPT):
        file.write("some text")
    binary.write(b"some bytes")
    temporary = tempfile.NamedTemporaryFile(dir=".")
    folder = tempfile.TemporaryDirectory(dir=".")
    saver, cycle = Saver("global"), Saver("cycle")
    cycle.itself = cycle
    beside.SAVER = Saver("of another module")
    slow.FUNCTION = work
    atexit.register(lambda: print("at exit"))
    if sys.argv[1] == "fail": atexit.register(fail)
    if sys.argv[1] == "close": sys.stdout.close()
    if sys.argv[1] != "close": sys.stdout = Tee()
    if sys.argv[1] == "thread": threading.Thread(target=work).start()
    if sys.argv[1] == "daemon": threading.Thread(target=loop, daemon=True).start()
    sys.exit({"300": 300, "-1": -1, "true": True}.get(sys.argv[1]))
"""


@pytest.mark.parametrize("case", ["plain", "fail", "close", "thread", "daemon", "300", "-1", "true"])
def test_forked_program_ends_as_a_new_process_does(gang, case):
    gang.add_program("run.py", ENDS)
    gang.add_program("beside.py", "")
    found = []
    for create in (open_process, gang.server.open_process):
        code, output = gang.run("run.py", case, create=create)
        files = {path.name for path in gang.folder.iterdir()} - {"__pycache__", "run.py", "beside.py", "program.py"}
        lines = [re.sub("0x[0-9a-f]+", "ADDRESS", line) for line in output.splitlines()]
        lines = [line for line in lines if not line.startswith("    ")]  # Python cannot read all code at its end
        contents = {name: (gang.folder / name).read_bytes() for name in files}
        for name in files:
            (gang.folder / name).unlink()
        if case in ("daemon", "thread"):  # Python frees what threads use, or not, and may lose what is in buffers
            lines, contents = [line for line in lines if "freed" not in line], {}
        contents |= {name: gzip.decompress(data) for name, data in contents.items() if name.endswith(".gz")}
        found.append((code, sorted(lines), contents))
        gang.prepare("slow", "gzip", "threading", "tempfile")
    assert found[1] == found[0]
    assert all(found[0][2].values())


def test_end_of_a_forked_program_leaves_libraries_alone(gang):
    gang.add_library("large", "import os\nclass Large:\n  def __del__(self): os.write(1, b'freed')\nLARGE = Large()")
    gang.add_program("run.py", "import large; print('end', flush=True)")
    assert gang.run("run.py") == (0, "end\nfreed")
    assert gang.prepare("large")
    assert gang.run("run.py") == (0, "end\n")


READS = "import os; PROCESS = os.getpid(); LEVEL = os.environ.get('LEVEL')"
SETS = """
    import os, sys
    print("LEVEL" in os.environ, flush=True)
    os.environ["LEVEL"] = sys.argv[1]
    {before}
    import slow, later
    print(slow.LEVEL, later.LEVEL, slow.PROCESS == os.getpid(), flush=True)
"""
AGAIN = "searchlight: begins again as a new process, since LEVEL of other trials differ"


@pytest.mark.parametrize("case", ["same", "other"])
def test_library_sees_what_the_program_has_set_before_its_import(gang, case):
    gang.add_library("slow", READS)
    gang.add_library("later", "import os; LEVEL = os.environ.get('LEVEL')")
    gang.add_program("run.py", SETS.format(before=""))
    assert gang.prepare("slow", "later", variables={"slow": {"LEVEL": "1"}, "later": {"LEVEL": "1"}})
    level = "1" if case == "same" else "2"
    again = "" if case == "same" else f"{AGAIN}\nFalse\n"
    for _ in range(2):
        assert gang.run("run.py", level) == (0, f"False\n{again}{level} {level} {case == 'other'}\n")
    assert gang.notes == []


def test_variable_that_the_first_program_did_not_set_is_seen(gang):
    gang.add_library("slow", READS)
    gang.add_program("run.py", SETS.format(before="").replace(" later.LEVEL,", "").replace(", later", ""))
    assert gang.prepare()
    assert gang.run("run.py", "1") == (0, f"False\n{AGAIN}\nFalse\n1 True\n")


def test_program_that_has_reported_is_not_begun_again(gang):
    gang.add_library("slow", READS)
    before = "from types import SimpleNamespace as N; "
    before += "sys.modules['searchlight_hook'] = N(get_connection=lambda: N(is_used=True))"
    gang.add_program("run.py", SETS.format(before=before).replace(" later.LEVEL,", "").replace(", later", ""))
    assert gang.prepare(variables={"slow": {"LEVEL": "1"}})
    line = "searchlight: slow was imported with other values of LEVEL; see --cold"
    assert gang.run("run.py", "2") == (0, f"False\n{line}\n1 False\n")


def test_variable_set_between_two_imports_is_seen_by_the_second_library(gang):
    gang.add_library("slow", READS)
    gang.add_library("later", "import os; LEVEL = os.environ.get('LEVEL')")
    text = "import os, slow; os.environ['LEVEL'] = '1'; import later; print(slow.LEVEL, later.LEVEL)"
    gang.add_program(
        "run.py", text + "; os.environ['LEVEL'] = '2'; import slow, later; print(slow.PROCESS == os.getpid())"
    )
    assert gang.prepare("slow", "later", variables={"later": {"LEVEL": "1"}})
    assert gang.run("run.py") == (0, "None 1\nFalse\n")


def test_relative_path_of_modules_belongs_to_the_folder_of_the_program(gang):
    gang.environment["PYTHONPATH"] += os.pathsep + "modules"
    (gang.folder / "modules").mkdir()
    gang.add_program("modules/beside.py", "NAME = __file__")
    gang.add_program("run.py", "import beside; print(beside.NAME)")
    assert gang.prepare()
    assert gang.run("run.py") == gang.run("run.py", create=open_process)


@pytest.mark.parametrize(
    "text",
    [
        "import threading, time; threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
        "import os; FILE = os.open(os.devnull, os.O_RDONLY)",
        "raise ValueError",
        "import sys; sys.path.append({user!r}); import own",
    ],
)
def test_module_that_cannot_be_forked_is_imported_by_each_program(gang, text):
    gang.add_library("unfit", text.format(user=str(gang.folder)))
    gang.add_program("own.py", "")
    gang.add_program("run.py", "import sys; loaded = 'unfit' in sys.modules\n" + RUN + "; print(loaded)")
    assert gang.prepare("unfit", "slow")
    assert gang.run("run.py") == (0, "False\nFalse\n")


def test_module_that_code_has_made_is_no_file_of_the_user(gang):
    gang.add_library("maker", "import sys, types; made = sys.modules['made'] = types.ModuleType('made')")
    with (gang.libraries / "maker.py").open("a") as file:
        file.write("; made.__file__ = '_made.py'")
    gang.add_program("run.py", "import sys; print('maker' in sys.modules)")
    assert gang.prepare("maker")
    assert gang.run("run.py") == (0, "True\n")


def test_modules_of_which_many_cannot_be_forked_are_not_imported(gang):
    names = [f"unfit{number}" for number in range(6)]
    for name in names:
        gang.add_library(name, "raise ValueError")
    assert not gang.prepare(*names)
    assert "unfit0 cannot be imported: ValueError" in gang.notes[0]
    assert gang.run("program.py", "exit")[0] == 3


def test_file_of_the_user_hides_an_imported_module(gang):
    gang.add_program("run.py", RUN)
    gang.add_program("slow.py", "PROCESS = 0")
    assert gang.prepare()
    assert gang.run("run.py") == (0, "False\n")
    gang.add_program("slow.py", "import os; PROCESS = os.getpid()")
    assert gang.run("run.py") == (0, "True\n")
    assert len(gang.notes) == 1
    assert f"{gang.folder / 'slow.py'} hides an installed module" in gang.notes[0]


def test_other_environment_needs_a_new_process(gang):
    gang.add_program("run.py", RUN)
    assert gang.prepare()
    assert gang.run("run.py", OMP_NUM_THREADS="3") == (0, "True\n")
    assert "their environments differ in OMP_NUM_THREADS" in gang.notes[0]


def test_program_that_is_stopped_ends_with_its_processes(gang):
    text = "import subprocess; child = subprocess.Popen(['sleep', '1000']); print(child.pid, flush=True); child.wait()"
    gang.add_program("run.py", text)
    assert gang.prepare()
    argv = [sys.executable, "run.py"]
    printed = threading.Event()
    places = gang.environment, gang.folder, gang.folder / "o"
    process = start_process(argv, *places, lambda line: printed.set(), create=gang.server.open_process)
    printed.wait()
    assert process.poll() is None
    assert process.wait(0.01) is None
    process.stop()
    assert process.poll() == -signal.SIGTERM
    assert list_processes(process.pid) == []
    assert gang.run("program.py", "exit")[0] == 3
    assert gang.notes == []


def test_program_ends_with_the_process_that_forked_it(gang):
    gang.add_program("run.py", "import os, time; os.kill(os.getppid(), 9); time.sleep(1000)")
    assert gang.prepare()
    assert gang.run("run.py") == (-signal.SIGKILL, "")
    assert gang.run("program.py", "exit")[0] == 3
    assert "has ended" in gang.notes[0]


def test_server_ends_with_the_process_that_uses_it(gang):
    gang.add_program(
        "gang.py",
        f"""
        import os, psutil, sys
        from pathlib import Path
        from searchlight.trainables.command.fork_server import ForkServer

        server = ForkServer()
        environment = {{**os.environ, "PYTHONPATH": {str(gang.libraries)!r}}}
        server.prepare([sys.executable, "program.py"], environment, Path.cwd(), ["slow"])
        assert server.wait()
        print(psutil.Process().children()[0].pid, flush=True)
        os._exit(0)
        """,
    )
    root = Path(__file__).parents[3]
    result = subprocess.run(
        [sys.executable, "gang.py"],
        cwd=gang.folder,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    try:
        process = psutil.Process(int(result.stdout))
    except psutil.NoSuchProcess:
        return
    process.wait(30)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python a.py --x 1", PythonCommand("/bin/python", (), "a.py", "", ("--x", "1"))),
        ("python3 -u -W error -Xa a.py", PythonCommand("/bin/python3", ("-u", "-W", "error", "-Xa"), "a.py", "", ())),
        ("python -m a.b -c d", PythonCommand("/bin/python", (), "", "a.b", ("-c", "d"))),
        ("venv/bin/python a.py", PythonCommand("/user/venv/bin/python", (), "a.py", "", ())),
        ("python", None),
        ("python -c pass", None),
        ("python -i a.py", None),
        ("python -", None),
        ("python -m", None),
        ("torchrun a.py", None),
        ("accelerate launch a.py", None),
        ("./a.py", None),
        ("", None),
    ],
)  # fmt: skip
def test_parse_python_command(command, expected, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name, path: f"{path}/{name}")
    assert parse_python_command(command.split(), "/bin", Path("/user")) == expected
