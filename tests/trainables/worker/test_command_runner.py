"""Run programs as trials: what they print or report is judged, and may end them."""

import os
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from searchlight.trainables.command.settings import CommandSettings, Flag
from searchlight.trainables.command.trial_folder import LARGEST_COPY, TrialFolder
from searchlight.trainables.context import Context
from searchlight.trainables.filesystem.paths import list_files, parse_path
from searchlight.trainables.worker.command_runner import CommandRunner
from searchlight.trainables.worker.messages import EpochReport, SegmentAssignment, SegmentEnd, WorkerSettings
from searchlight.trainables.worker.trial_runner import TrialRunner

pytestmark = pytest.mark.usefixtures("as_in_a_worker")
LIMIT_S = 120.0


@pytest.mark.parametrize(
    "settings", [WorkerSettings("toy:Toy"), WorkerSettings("", command=CommandSettings(("true",), "", "", ("loss",)))]
)
def test_workspace_of_cublas_is_reserved_for_tasks_alone(settings, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    TrialRunner(settings, Context(), threading.Event())
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) == (settings.command is None)


LOSS = r"loss=(?:step (?P<step>\d+) )?loss (\S+)"
COUNT = """
    import sys, time
    for epoch in range(1, int(sys.argv[1]) + 1):
        print(f"step {epoch} loss {1 / epoch}")
"""
ENDLESS = """
    import itertools, os, time
    print("pid", os.getpid())
    for epoch in itertools.count(1):
        print(f"step {epoch} loss {1 / epoch}")
        time.sleep(0.01)
"""
# Saves each epoch before it is reported. Each start trains so many epochs, and waits for its end.
RESUMING = """
    import sys, time
    from pathlib import Path
    folder = Path(sys.argv[1])
    begin = int((folder / "last").read_text()) if "--resume" in sys.argv else 0
    print("begins after", begin)
    for epoch in range(begin + 1, begin + 1 + int(sys.argv[2])):
        (folder / "last").write_text(str(epoch))
        print(f"step {epoch} loss {1 / epoch}")
    time.sleep(600)
"""


class Project:
    """The folder of a user with a program, and a worker that runs its trials."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.trials = folder / "runs" / "name" / "trials"
        self.folder.mkdir()
        self.stopping = threading.Event()

    def write(self, code: str, name: str = "train.py") -> None:
        (self.folder / name).write_text(textwrap.dedent(code))

    def worker(self, *words: str, **options: object) -> CommandRunner:
        options = {"trial_root": str(self.trials), "metrics": (LOSS,), "stop_grace": 30.0, **options}
        command = CommandSettings(
            (sys.executable, "-u", "train.py", *words), str(self.folder), objectives=("loss",), **options
        )
        settings = WorkerSettings("", "loss", command=command)
        return CommandRunner(settings, Context(), self.stopping)

    def segment(self, epoch=0, until=100, is_last=True, trial=0, **config) -> SegmentAssignment:
        folder = str(self.folder.parent / "checkpoints" / str(trial))
        return SegmentAssignment(trial, {"seed": 7, **config}, epoch, until, folder, "a", is_last=is_last)

    def output(self, trial: int = 0) -> list[str]:
        return (self.trials / str(trial) / "output.txt").read_text().splitlines()


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def losses(reports):
    return [report.metrics["loss"] for report in reports if isinstance(report, EpochReport)]


def end(reports):
    assert isinstance(reports[-1], SegmentEnd)
    return reports[-1].outcome, reports[-1].reason


def find_notes(reports):
    return [note for report in reports for note in report.notes]


def is_running(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_each_line_with_a_metric_is_a_report(project):
    project.write(COUNT)
    reports = [*project.worker("{epochs}").run(project.segment(epochs=3, until=3))]
    assert losses(reports) == [1, 1 / 2, 1 / 3]
    assert end(reports) == ("completed", "")
    assert project.output() == ["step 1 loss 1.0", "step 2 loss 0.5", f"step 3 loss {1 / 3}"]


def test_program_gets_its_parameters_and_runs_in_a_folder_with_links(project):
    (project.folder / "data").mkdir()
    (project.folder / "data" / "part.txt").write_text("0.25")
    project.write("raise SystemExit('imported')", "logging.py")
    project.write("""
        import json, os, sys
        from pathlib import Path
        Path("written.txt").write_text("of the trial")
        Path("data/more.txt").write_text("of the trial")
        assert sys.argv[1:] == ["--seed", "7", "--lr", "0.1", "--model.depth", "3"], sys.argv
        assert Path.cwd() == Path(os.environ["SEARCHLIGHT_TRIAL_DIR"])
        assert json.loads(os.environ["SEARCHLIGHT_PARAMS"])["model.depth"] == 3
        assert "RANK" not in os.environ
        print("loss", Path("data/part.txt").read_text())
    """)
    (project.folder / "logging.py").unlink()
    flags = {name: Flag((f"--{name}", "{value}")) for name in ("lr", "model.depth")}
    worker = project.worker("--seed", "{seed}", flags=flags)
    reports = [*worker.run(project.segment(trial=4, lr=0.1, model={"depth": 3}))]
    assert (losses(reports), end(reports)) == ([0.25], ("completed", ""))
    kept = {path.name for path in (project.trials / "4").rglob("*")}
    assert kept == {"output.txt", "written.txt", "data", "more.txt"}, "links go with the program"
    assert sorted(path.name for path in project.folder.rglob("*")) == ["data", "part.txt", "train.py"]


def test_later_programs_have_the_imports_of_the_first_one(project, monkeypatch):
    libraries = project.folder.parent / "site-packages"
    libraries.mkdir()
    (libraries / "slow.py").write_text("import os; PROCESS = os.getpid()")
    monkeypatch.setenv("PYTHONPATH", str(libraries), prepend=os.pathsep)
    project.write("import os, slow, sys; print('loss', int(slow.PROCESS == os.getpid())); sys.exit(sys.argv[1] == '1')")
    worker = project.worker("{trial}", metrics=(r"loss=loss (\S+)",))
    assert worker._server is not None
    ends, outputs = [], []
    for trial in range(4):
        reports = [*worker.run(project.segment(trial=trial))]
        worker.drop_trial_unless_continued(None)
        worker._server.wait()
        ends.append(end(reports)[0])
        outputs.append(project.output(trial)[0])
    assert ends == ["completed", "failed", "completed", "completed"]
    assert outputs == ["loss 1", "loss 0", "loss 0", "loss 0"]
    assert worker.recycle_reason == ""


def test_forked_program_has_libraries_that_saw_its_variables(project, monkeypatch):
    libraries = project.folder.parent / "site-packages"
    libraries.mkdir()
    (libraries / "slow.py").write_text("import os; LEVEL, PROCESS = os.environ.get('LEVEL', '-1'), os.getpid()")
    monkeypatch.setenv("PYTHONPATH", str(libraries), prepend=os.pathsep)
    project.write("""
        import os, sys
        os.environ["LEVEL"] = {"2": "4"}.get(sys.argv[1], "3")
        import slow
        print(f"step 1 loss {slow.LEVEL}{int(slow.PROCESS == os.getpid())}")
    """)
    worker = project.worker("{trial}")
    assert worker._server is not None
    found = []
    for trial in range(4):
        found += losses(worker.run(project.segment(trial=trial)))
        worker.drop_trial_unless_continued(None)
        assert worker._server.wait()
    assert found == [31, 30, 41, 30]
    assert project.output(2)[0].startswith("searchlight: begins again as a new process, since LEVEL")


def test_program_that_prints_its_metric_gives_its_imports_before_it_is_stopped(project, monkeypatch):
    libraries = project.folder.parent / "site-packages"
    libraries.mkdir()
    (libraries / "slow.py").write_text("import os; PROCESS = os.getpid()")
    monkeypatch.setenv("PYTHONPATH", str(libraries), prepend=os.pathsep)
    project.write("""
        import itertools, os, sys, time, slow
        is_own = slow.PROCESS == os.getpid()
        for epoch in itertools.count(1):
            print(f"step {epoch} loss {int(is_own)}")
            while is_own and not sys.modules["searchlight_hook"].get_connection().is_used:
                time.sleep(0.01)
    """)
    worker = project.worker()
    assert worker._server is not None
    found = []
    for trial in range(2):
        reports = [*worker.run(project.segment(trial=trial, until=3))]
        found.append(losses(reports))
        worker.drop_trial_unless_continued(None)
        assert worker._server.wait()
    assert found == [[1] * 3, [0] * 3]


def test_files_of_the_user_may_have_any_name(project):
    for name in ("search.py", "models.py", "my-script.py"):
        project.write("x = 0.5", name)
    project.write("import search, models; print('loss', search.x + models.x)")
    reports = [*project.worker().run(project.segment())]
    assert (losses(reports), end(reports)) == ([1.0], ("completed", ""))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; print('loss 1'); sys.exit(3)", "exit code 3: loss 1"),
        ("print('loss 1'); raise ValueError('too large')", "exit code 1: ValueError: too large"),
        ("import os; os.kill(os.getpid(), 11)", "the program was killed by SIGSEGV"),
    ],
)
def test_failure_says_what_happened(project, code, reason):
    project.write(code)
    reports = [*project.worker().run(project.segment())]
    assert end(reports) == ("failed", reason)
    assert "output.txt" in reports[-1].traceback


@pytest.mark.parametrize(
    ("code", "metrics", "reason"),
    [
        ("print('accuracy 1')", (),
         "it gave no metric. With --try-first, the same command proposes what to judge it by"),
        ("print('acc 1'); print('acc 2')", ("acc=acc (.+)",),
         "it gave acc (2 times, output). With --try-first, the same command proposes what to judge it by"),
        ("print('acc 1'); print('test Loss: 2')", ("acc=acc (.+)", "loss=loss: (.+)"),
         "it gave acc (1 times, output); --metric 'loss=loss: (.+)' matched none of the 2 lines. The nearest one is: "
         "test Loss: 2"),
        ("print('begins'); print('ends')", ("loss=loss: (.+)",),
         "--metric 'loss=loss: (.+)' matched none of the 2 lines, of which none has a number"),
        ("print('loss: low')", ("loss=loss: (.+)",), "--metric 'loss=loss: (.+)' matched 'low', which is no number"),
        ("print('loss: 2')", ("loss=json",),
         "none of the 1 line is JSON with a number loss. The nearest one is: loss: 2"),
        ("", ("loss=json",), "--metric loss=json had nothing to read, since the program printed no line"),
    ],
)  # fmt: skip
def test_program_without_its_objective_says_what_it_gave(project, code, metrics, reason):
    project.write(code)
    reports = [*project.worker(metrics=metrics).run(project.segment())]
    assert end(reports) == ("failed", f"the program ended without loss: {reason}")


def test_failure_has_the_last_lines_of_the_output_and_its_place(project):
    project.write("for i in range(99): print('line', i)\ndef main():\n    raise KeyError('lr')\nmain()")
    failed = [*project.worker().run(project.segment())][-1]
    assert failed.reason == "exit code 1: KeyError: 'lr'"
    assert failed.traceback.startswith("line ")
    assert failed.location == f"{project.folder}/train.py, line 3, in main", "the same in all trials"


def test_failure_after_the_last_report_leaves_the_trial_complete(project):
    project.write("print('loss 1'); raise SystemExit(1)")
    reports = [*project.worker().run(project.segment(until=1))]
    assert (losses(reports), end(reports)) == ([1.0], ("completed", ""))


def test_metric_that_is_not_finite_is_a_divergence(project):
    project.write("print('loss 1'); print('loss nan')\nimport time; time.sleep(600)")
    reports = [*project.worker().run(project.segment())]
    assert end(reports) == ("diverged", "loss is nan in report 2")


def test_last_value_of_a_step_counts(project):
    project.write("print('step 1 loss 3'); print('step 2 loss 2'); print('step 2 loss 1')")
    reports = [*project.worker().run(project.segment(until=2))]
    assert losses(reports) == [3, 1]


def test_program_goes_on_between_segments_and_ends_with_its_trial(project):
    project.write(ENDLESS)
    worker = project.worker()
    first = [*worker.run(project.segment(until=2, is_last=False))]
    assert losses(first) == [1, 1 / 2]
    assert first[-1].done
    second = [*worker.run(project.segment(epoch=2, until=4, is_last=False))]
    assert losses(second) == [1 / 3, 1 / 4]
    pid = int(project.output()[0].split()[1])
    assert is_running(pid)
    worker.drop_trial_unless_continued(None)
    assert not is_running(pid)
    assert worker.recycle_reason == ""


def test_time_of_a_report_begins_with_the_one_before_although_the_function_waits(project):
    project.write("""
        import sys, time
        from pathlib import Path
        print("step 1 loss 1")
        while not Path(sys.argv[1]).exists():
            time.sleep(0.01)
        time.sleep(0.5)
        print("step 2 loss 2")
    """)
    begin = project.folder.parent / "begin"
    worker = project.worker(str(begin))
    assert losses(worker.run(project.segment(until=1, is_last=False))) == [1]
    begin.touch()
    while len(project.output()) < 2:
        time.sleep(0.01)
    second = [*worker.run(project.segment(epoch=1, until=2))]
    assert losses(second) == [2]
    assert second[0].costs["gpu_seconds"] >= 0.5


def test_program_ends_at_once_if_the_search_does(project):
    project.write("import time; print('up', flush=True); time.sleep(600)")
    worker = project.worker()
    threading.Timer(1.0, project.stopping.set).start()
    assert end([*worker.run(project.segment())]) == ("interrupted", "the search was stopped")


def test_program_that_goes_on_after_its_last_report_is_stopped(project):
    project.write(ENDLESS)
    reports = [*project.worker().run(project.segment(until=3))]
    assert (losses(reports), end(reports)) == ([1, 1 / 2, 1 / 3], ("completed", ""))
    assert not is_running(int(project.output()[0].split()[1]))


def test_program_with_checkpoints_continues_after_its_last_report(project):
    project.write(RESUMING)
    worker = project.worker("{checkpoint_dir}", "2", resume_with=("--resume",))
    first = [*worker.run(project.segment(until=2, is_last=False))]
    other = [*worker.run(project.segment(trial=1, until=1, is_last=False))]
    second = [*worker.run(project.segment(epoch=2, until=4, is_last=False))]
    worker.drop_trial_unless_continued(None)
    assert [report.epoch for report in (*first, *second)] == [1, 2, 3, 4]
    assert losses([*first, *second]) == [1, 1 / 2, 1 / 3, 1 / 4]
    assert losses(other) == [1]
    started = [line for line in project.output() if line.startswith("begins")]
    assert started == ["begins after 0", "begins after 2"]


def test_reports_of_a_program_are_kept_while_its_function_waits(project):
    """The program saves its state meanwhile, and would not make them again after its worker was killed."""
    project.write(RESUMING)
    worker = project.worker("{checkpoint_dir}", "3", resume_with=("--resume",))
    assert losses(worker.run(project.segment(until=1, is_last=False))) == [1]
    end_at = time.monotonic() + LIMIT_S
    while len(kept := TrialFolder(worker.command, 0).read_reports()) < 3:
        assert time.monotonic() < end_at
        time.sleep(0.05)
    assert [report.step for report in kept] == [1, 2, 3]
    worker.drop_trial_unless_continued(None)


def test_program_that_another_worker_continues_ends_first(project):
    """The first worker keeps it while it has nothing else to do."""
    project.write(RESUMING)
    options = {"resume_with": ("--resume",)}
    first, second = (project.worker("{checkpoint_dir}", "2", **options) for _ in range(2))
    assert losses(first.run(project.segment(until=2, is_last=False))) == [1, 1 / 2]
    assert losses(second.run(project.segment(epoch=2, until=4, is_last=False))) == [1 / 3, 1 / 4]
    folder = project.trials / "0"
    assert (folder / "train.py").is_symlink()
    first.drop_trial_unless_continued(None)
    assert (folder / "train.py").is_symlink(), "the second worker needs it"
    second.drop_trial_unless_continued(None)
    assert not (folder / "train.py").exists()
    started = [line for line in project.output() if line.startswith("begins")]
    assert started == ["begins after 0", "begins after 2"]


def test_program_without_checkpoints_starts_again_in_a_new_folder(project):
    project.write("from pathlib import Path; assert not Path('x').exists(); Path('x').touch(); print('loss 1')")
    for _ in range(2):
        reports = [*project.worker().run(project.segment())]
        assert (losses(reports), end(reports)) == ([1.0], ("completed", ""))
    assert [line.partition(",")[0] for line in project.output()] == [
        "loss 1", "--- searchlight: the program starts again", "loss 1",
    ]  # fmt: skip


def test_what_the_program_left_running_ends_with_the_trial(project):
    project.write("""
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        print("child", child.pid)
        print("loss 1")
    """)
    reports = [*project.worker().run(project.segment())]
    assert end(reports) == ("completed", "")
    assert not is_running(int(project.output()[0].split()[1]))


def test_program_runs_in_the_folder_of_the_user_if_asked(project):
    project.write("from pathlib import Path; print('loss', len(list(Path.cwd().glob('train.py'))))")
    reports = [*project.worker(link=False).run(project.segment())]
    assert losses(reports) == [1.0]
    assert os.listdir(project.folder) == ["train.py"]


def test_files_that_the_program_changes_are_its_own(project):
    project.write("header\n", "results.csv")
    project.write("lr: 0.1\n", "config.yaml")
    project.write("""
        import os
        with open("results.csv", "a") as file:
            file.write(f"trial {os.environ['SEARCHLIGHT_TRIAL']}\\n")
        print("loss", len(open("results.csv").readlines()))
    """)
    for trial in (0, 1):
        reports = [*project.worker().run(project.segment(trial=trial))]
        assert losses(reports) == [2], "no lines of other trials"
        assert find_notes(reports) == []
        assert {path.name for path in (project.trials / str(trial)).iterdir()} == {"output.txt", "results.csv"}
        assert (project.trials / str(trial) / "results.csv").read_text() == f"header\ntrial {trial}\n"
    assert (project.folder / "results.csv").read_text() == "header\n"


@pytest.mark.parametrize("link", [True, False])
def test_first_trial_warns_of_files_that_all_trials_share(project, link):
    project.write("0" * LARGEST_COPY + "\n", "large.csv")
    project.write("""
        from pathlib import Path
        folder = Path(__file__).resolve().parent
        (folder / "out").mkdir(exist_ok=True)
        for number in range(6):
            (folder / "out" / f"{number}.txt").write_text("new")
        with open("large.csv", "a") as file:
            file.write("more\\n")
        print("loss 1")
        print("loss 2")
    """)
    told = f"large.csv, out/0.txt, out/1.txt, out/2.txt, out/3.txt and 2 others changed in {project.folder}"
    how = "while the program ran. If it writes there, all trials share that: give it a path in {trial_dir}"
    assert find_notes([*project.worker(link=link).run(project.segment())]) == [f"{told} {how}"]
    assert find_notes([*project.worker(link=link).run(project.segment(trial=1))]) == []


def test_output_and_checkpoints_of_a_trial_are_kept_in_a_bucket(project, s3):
    project.write(RESUMING)
    root = f"{s3}/runs/name/trials"
    worker = project.worker("{checkpoint_dir}", "2", resume_with=("--resume",), trial_root=root)
    first = [*worker.run(project.segment(until=2, is_last=False))]
    worker.drop_trial_unless_continued(None)
    other = project.worker("{checkpoint_dir}", "2", resume_with=("--resume",), trial_root=root)
    second = [*other.run(project.segment(epoch=2, until=4, is_last=False))]
    other.drop_trial_unless_continued(None)
    assert losses([*first, *second]) == [1, 1 / 2, 1 / 3, 1 / 4]
    output = (parse_path(root) / "0" / "output.txt").read_text(encoding="utf-8")
    assert "searchlight: the program continues" in output
    assert "train.py" not in str(list_files(parse_path(root) / "0")), "links are no files of the trial"
