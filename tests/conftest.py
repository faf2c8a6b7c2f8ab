import contextlib
import fcntl
import os
import random
import secrets
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest
import torch
from click.testing import CliRunner

from searchlight.trainables.filesystem.paths import parse_path
from tests.servers.s3 import S3Server

ROOT = Path(__file__).resolve().parent.parent
TASKS = ROOT / "tests" / "tasks"
STARTED: list[subprocess.Popen] = []  # by the test that runs
# A second gang, the audit, confirming runs and MLflow take most of the CPU time of a small search.
QUICK = {
    "--confirm": ["0"],
    "--scheduler": ["asha"],
    "--concurrency": ["1"],
    "--no-preflight": [],
    "--tracker": ["none"],
}

# The same examples in each run, so that a failure belongs to the change that caused it. An example may take any time.
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None)
hypothesis.settings.load_profile("fixed")


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="where tests of updates and of training compute: cpu or cuda")
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in the random order of this seed")


def pytest_configure(config):
    if config.getoption("device") == "cpu":  # a search, too, must take no GPU by accident
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(config, items):
    if (seed := config.getoption("--shuffle")) is not None:
        random.Random(seed).shuffle(items)


def pytest_collection_finish():
    # A test may write two versions of a module in a second, and Python would run the bytecode of the first one twice.
    sys.dont_write_bytecode = True


@pytest.fixture(scope="session")
def device(pytestconfig):
    return torch.device(pytestconfig.getoption("device"))


@pytest.fixture
def on_device(pytestconfig):
    """Make tensors on `--device` unless a test says where."""
    if pytestconfig.getoption("device") != "cpu":  # the default, with which each call would go through a function mode
        torch.set_default_device(pytestconfig.getoption("device"))
    yield
    torch.set_default_device(None)


@dataclass
class Cli:
    """Runs scripts of the project as a user does: in a folder of their own, outside of the repository.

    Attributes:
        has_preflight: Whether a new search audits its task first.
        has_mlflow: Whether a new search sends its trials to MLflow.
    """

    folder: Path
    env: dict[str, str]
    make_store: Callable[[], Path]
    has_preflight: bool = False
    has_mlflow: bool = False

    def start(self, *arguments: str, script: str | Path = "search/run.py") -> subprocess.Popen:
        """Start a script. To save time, a new search has the options QUICK unless `arguments` differ."""
        is_new = script == "search/run.py" and not {"--resume", "--list"} & {*arguments}
        if is_new and not {"--config", "--once"} & {*arguments}:
            left_out = {*arguments, *["--no-preflight"] * self.has_preflight, *["--tracker"] * self.has_mlflow}
            quick = [word for option, values in QUICK.items() if option not in left_out for word in (option, *values)]
            arguments = (*quick, *arguments)
        elif is_new and "--confirm" not in arguments:
            arguments = ("--confirm", "0", *arguments)
        if is_new and "--name" in arguments and not {"--storage", "--tracker"} & {*arguments}:
            self._give_store()
        command = [sys.executable, str(ROOT / script), *arguments]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.env,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,  # as a terminal does: a signal to the group reaches all that it starts
        )
        STARTED.append(process)
        return process

    def _give_store(self) -> None:
        """Put MLflow's empty database where the first search of this folder would create it, which takes seconds."""
        store = self.folder / "runs" / "mlflow.db"
        if not store.exists() and "MLFLOW_TRACKING_URI" not in self.env:
            store.parent.mkdir(exist_ok=True)
            shutil.copy(self.make_store(), store)

    def run(
        self, *arguments: str, timeout: float = 600, script: str | Path = "search/run.py"
    ) -> subprocess.CompletedProcess:
        return self.finished(self.start(*arguments, script=script), timeout)

    def invoke(self, *arguments: str, script: str = "search/run.py") -> subprocess.CompletedProcess:
        """Run the command in this process, which saves the seconds of its imports. It must start no search."""
        from searchlight.search import cli, report, run

        mains = {"search/run.py": run.main, "search/report.py": report.main, "search/cli.py": cli.searchlight}
        main = mains[script]
        tasks = {file.stem for file in TASKS.glob("*.py")}  # of another folder, if a test has imported them
        imported = {name: sys.modules.pop(name) for name in tasks & {*sys.modules}}
        path, modules = [*sys.path], {*sys.modules}
        sys.path[:] = [folder for folder in path if folder != str(TASKS)]
        with contextlib.chdir(self.folder):
            done = CliRunner().invoke(main, arguments)
        sys.path[:] = path
        for name in {*sys.modules} - modules:  # the task of one test has the name of that of another
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(self.folder)):
                del sys.modules[name]
        sys.modules.update(imported)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    def finished(self, process: subprocess.Popen, timeout: float = 600) -> subprocess.CompletedProcess:
        """What came of `process`, which `start` has started."""
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"{process.args} took more than {timeout} s\n{out}\n{err}")
        return subprocess.CompletedProcess(process.args[2:], process.returncode, out, err)


@pytest.fixture(autouse=True)
def kill_what_a_failed_test_leaves():
    yield
    while STARTED:
        STARTED.pop().kill()


@pytest.fixture(autouse=True)
def keep_modules_of_tests():
    """Fail a test that makes this process import the tests again. Otherwise later ones would fail in its place."""
    kept = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "tests"}
    yield
    lost = [name for name, module in kept.items() if sys.modules.get(name) is not module]
    sys.modules.update(kept)
    assert lost == []


@pytest.fixture(scope="session")
def empty_mlflow_db(tmp_path_factory):
    """A database of MLflow without runs, which takes long to create: all workers of a session share it."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with open(folder / "mlflow.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "mlflow.db").exists():
            from mlflow.tracking import MlflowClient

            MlflowClient(f"sqlite:///{folder / 'new.db'}").search_experiments()
            with sqlite3.connect(folder / "new.db") as database:
                database.execute("VACUUM INTO ?", [str(folder / "mlflow.db")])
    return folder / "mlflow.db"


@pytest.fixture(scope="session")
def make_cli(tmp_path_factory, request):
    """Makes a folder with the tasks of a user in it, and the command line in that folder."""

    def make(name: str = "user") -> Cli:
        folder = tmp_path_factory.mktemp(name)
        for file in TASKS.glob("*.py"):
            shutil.copy(file, folder)
        env = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "MLFLOW_"))}
        token = folder.parent / "ray-token"  # nothing of the user's home is touched
        token.write_text(secrets.token_hex(32))
        env |= {"OMP_NUM_THREADS": "1", "RAY_AUTH_TOKEN_PATH": str(token)}
        return Cli(folder, env, lambda: request.getfixturevalue("empty_mlflow_db"))

    return make


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    """An S3 server for whoever asks. A process that is started by hand needs its `env`."""
    server = S3Server(tmp_path_factory.mktemp("s3")).start()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server, monkeypatch):
    """The URI of an empty bucket, which this process reaches without more."""
    for variable, value in s3_server.env.items():
        monkeypatch.setenv(variable, value)
    return s3_server.make_bucket(f"test-{secrets.token_hex(4)}")


@pytest.fixture(params=["disk", "bucket"])
def anywhere(request, tmp_path):
    """A folder on a disk, and one in a bucket."""
    return tmp_path if request.param == "disk" else parse_path(request.getfixturevalue("s3")) / "runs"


@pytest.fixture
def short_folder():
    """For Ray: its sockets lie below it, and the paths of theirs may have 107 characters."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def server():
    from tests.servers.postgres import Server, find_programs  # psycopg is an extra

    programs = find_programs()
    if programs is None:
        pytest.skip("there is no PostgreSQL on this machine")
    made = Server(programs)
    yield made
    made.remove()


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("there is no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=60_000)
        yield browser
        browser.close()
