"""Run programs as trials: each has a folder with links to the files of the user, and files of its own."""

import errno
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from searchlight.trainables.command.settings import FileTarget, Flag
from searchlight.trainables.command.trial_folder import LARGEST_COPY, SMALL, TrialFolder
from searchlight.trainables.filesystem import remote_path
from searchlight.trainables.filesystem.paths import RemotePath, list_files, parse_path
from tests.trainables.worker.command_project import RESUMING, end, find_notes, losses

pytestmark = pytest.mark.usefixtures("as_in_a_worker")


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


def test_files_of_the_user_may_have_any_name(project):
    for name in ("search.py", "models.py", "my-script.py"):
        project.write("x = 0.5", name)
    project.write("import search, models; print('loss', search.x + models.x)")
    reports = [*project.worker().run(project.segment())]
    assert (losses(reports), end(reports)) == ([1.0], ("completed", ""))


@pytest.mark.parametrize("place", ["runs", "out/runs"])
def test_folder_of_searches_has_only_what_is_the_users(project, place):
    runs = project.folder / place
    root = str(runs / "name" / "trials")
    for name in ("name/output.bin", "other/search.yaml", "sizes/ladder.yaml", "mlartifacts/file", "mlflow.db"):
        (runs / name).parent.mkdir(parents=True, exist_ok=True)
        (runs / name).touch()
    for index in range(SMALL):
        (runs / "other" / f"{index}.txt").touch()
    project.write(f"import os; print('loss', len(os.listdir({place!r})) if os.path.exists({place!r}) else 0.5)")
    assert losses([*project.worker(trial_root=root).run(project.segment())]) == [0.5]
    (runs / "data").mkdir()
    (runs / "data" / "part.txt").touch()
    project.write(f"import os; print('loss', len(os.listdir({place!r})) + len(os.listdir('{place}/data')))")
    assert losses([*project.worker(trial_root=root).run(project.segment(trial=1))]) == [2]
    assert not (runs / "name" / "trials" / "1" / place).exists()


def test_search_that_begins_or_fails_beside_this_one_disturbs_no_trial(project):
    runs = project.folder / "runs"
    project.write("")
    worker = project.worker(trial_root=str(runs / "name" / "trials"))
    is_over = threading.Event()

    def begin_and_fail() -> None:
        while not is_over.is_set():
            (runs / "other" / "code").mkdir(parents=True)
            for index in range(20):
                (runs / "other" / "code" / f"{index}.txt").write_text("x" * 1000)
            shutil.rmtree(runs / "other")

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(begin_and_fail)
        try:
            for trial in range(20):
                TrialFolder(worker.command, trial).prepare()
        finally:
            is_over.set()
        other.result()
    assert len([*runs.glob("name/trials/*/train.py")]) == 20


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


@pytest.mark.parametrize("is_large", [True, False])
def test_values_are_written_to_a_copy_in_a_folder_that_is_a_link(project, is_large):
    configs = project.folder / "configs" / "deep"
    if is_large:
        configs.mkdir(parents=True)
        for index in range(SMALL):
            (configs / f"{index}.yaml").touch()
    else:
        place = project.folder.parent / "elsewhere"
        (place / "deep").mkdir(parents=True)
        (project.folder / "configs").symlink_to(place)
    (configs / "base.yaml").write_text("lr: 0.1\n")
    (configs / "other.yaml").write_text("of the user")
    project.write("""
        from pathlib import Path
        assert Path("configs/deep/other.yaml").read_text() == "of the user"
        print("loss", Path("configs/deep/base.yaml").read_text().split()[1])
    """)
    files = (FileTarget("configs/deep/base.yaml", "lr", "lr"),)
    for trial, lr in enumerate((0.5, 0.7)):
        reports = [*project.worker(files=files).run(project.segment(trial=trial, lr=lr))]
        assert losses(reports) == [lr]
        assert (project.trials / str(trial) / "configs" / "deep" / "base.yaml").read_text() == f"lr: {lr}\n"
        assert not (project.trials / str(trial) / "configs" / "deep" / "other.yaml").exists(), "links go"
    assert (configs / "base.yaml").read_text() == "lr: 0.1\n", "the user's file is as it was"


@pytest.mark.parametrize("kind", ["file", "link", "large"])
def test_modules_that_look_for_others_beside_themselves_find_the_values_of_their_trial(project, kind):
    (project.folder / "tools").mkdir()
    project.write("LR = 0.1\n", "tools/net.py")
    project.write("""
        import sys
        from pathlib import Path
        sys.path.insert(0, str(Path(__file__).resolve().parent))
        from net import LR
    """, "tools/found.py")  # fmt: skip
    if kind == "link":
        (project.folder / "tools" / "found.py").rename(project.folder.parent / "found.py")
        (project.folder / "tools" / "found.py").symlink_to(project.folder.parent / "found.py")
    for index in range(SMALL * (kind == "large")):
        (project.folder / "tools" / f"{index}.txt").touch()
    project.write("import runpy; print('loss', runpy.run_path('tools/found.py')['LR'])")
    patches = (FileTarget("tools/net.py", "LR", "lr"),)
    assert losses([*project.worker(patches=patches).run(project.segment(lr=0.7))]) == [0.7]
    assert {path.name for path in (project.trials / "0").rglob("*.py")} == {"net.py", "train.py"}, "copies go"


def test_script_with_values_can_be_executed_as_the_users(project):
    project.write(f"#!{sys.executable}\nLR = 0.1\nprint('loss', LR)\n")
    (project.folder / "train.py").chmod(0o755)
    worker = project.worker(patches=(FileTarget("train.py", "LR", "lr"),))
    command = replace(worker.command, words=("./train.py",))
    worker.settings = replace(worker.settings, command=command)
    assert losses([*worker.run(project.segment(lr=0.7))]) == [0.7]


INSTALLED = """
import sys
class Finder:  # as setuptools installs a package in editable mode
    def find_spec(self, name, path=None, target=None):
        from importlib.util import spec_from_file_location
        if name == "net":
            return spec_from_file_location(name, {folder!r} + "/src/net/__init__.py")
sys.meta_path.append(Finder())
"""


@pytest.mark.parametrize("way", ["PYTHONPATH", "editable", "link"])
def test_module_that_is_found_in_the_folder_of_the_user_has_the_values_of_its_trial(project, monkeypatch, way):
    (project.folder / "src" / "net").mkdir(parents=True)
    project.write("from .values import LR", "src/net/__init__.py")
    project.write("LR = 0.1\n", "src/net/values.py")
    paths, more = project.folder / "src", ""
    if way == "editable":
        more = INSTALLED.format(folder=str(project.folder))
    else:
        if way == "link":
            paths = project.folder.parent / "linked"
            paths.symlink_to(project.folder / "src")
        monkeypatch.setenv("PYTHONPATH", str(paths), prepend=os.pathsep)
    project.write(f"{more}\nimport net; print(net.__file__); print('loss', net.LR)")
    patches = (FileTarget("src/net/values.py", "LR", "lr"),)
    for trial, lr in enumerate((0.5, 0.7)):
        assert losses([*project.worker(patches=patches).run(project.segment(trial=trial, lr=lr))]) == [lr]
        assert project.output(trial)[0] == f"{project.trials}/{trial}/src/net/__init__.py"
    assert losses([*project.worker().run(project.segment(trial=2, lr=0.7))]) == [0.1], "of no file with values"


def test_trials_share_no_compiled_code_that_has_their_values(project, monkeypatch):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    project.write("LR = 0.1\n", "net.py")
    (project.folder / "__pycache__").mkdir()
    found = []
    for trial in range(2):
        worker = project.worker(patches=(FileTarget("net.py", "LR", "lr"),))
        folder = TrialFolder(worker.command, trial)
        folder.prepare()
        folder.write({"net.py": f"LR = 0.{trial}\n"})
        os.utime(folder.path / "net.py", (1, 1))  # trials may begin in the same second
        words = [sys.executable, "-c", "import net; print(net.LR)"]
        found.append(float(subprocess.check_output(words, cwd=folder.path)))
    assert found == [0.0, 0.1]


def test_resumed_program_has_all_files_of_a_folder_with_its_values(project):
    (project.folder.parent / "elsewhere" / "deep").mkdir(parents=True)
    (project.folder / "configs").symlink_to(project.folder.parent / "elsewhere")
    (project.folder / "configs" / "deep" / "base.yaml").write_text("lr: 0.1\n")
    (project.folder / "configs" / "deep" / "other.yaml").write_text("of the user")
    project.write(
        "from pathlib import Path\nassert Path('configs/deep/other.yaml').exists()" + textwrap.dedent(RESUMING)
    )
    files = (FileTarget("configs/deep/base.yaml", "lr", "lr"),)
    found = []
    for epoch in (0, 2):
        worker = project.worker("{checkpoint_dir}", "2", resume_with=("--resume",), files=files)
        found += worker.run(project.segment(epoch=epoch, until=epoch + 2, is_last=False, lr=0.5))
        worker.drop_trial_unless_continued(None)
    assert losses(found) == [1, 1 / 2, 1 / 3, 1 / 4]


def test_trial_never_resumes_from_checkpoints_of_the_user(project, monkeypatch):
    (project.folder / "checkpoints").mkdir()
    (project.folder / "checkpoints" / "last").write_text("77")
    project.write("x = 1", "z.txt")
    project.write(RESUMING)
    write_bytes = Path.write_bytes

    def fill_disk(path, content):
        if path.name.startswith("z.txt"):
            raise OSError(errno.ENOSPC, "as the disk says", str(path))
        return write_bytes(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fill_disk)
        worker = project.worker("{checkpoint_dir}", "2", resume_with=("--resume",))
        *_, last = worker.run(project.segment(until=2, is_last=False))
        assert last.outcome == "interrupted"
    worker = project.worker("{checkpoint_dir}", "2", resume_with=("--resume",))
    assert losses(worker.run(project.segment(until=2, is_last=False))) == [1, 1 / 2]
    worker.drop_trial_unless_continued(None)


def test_full_disk_leaves_no_half_copy(project, monkeypatch):
    project.write(RESUMING)
    project.write("a long table\n", "train.csv")
    worker = project.worker("{checkpoint_dir}", "2", resume_with=("--resume",))
    [*worker.run(project.segment(until=2, is_last=False))]
    worker.drop_trial_unless_continued(None)
    write_bytes = Path.write_bytes

    def fill_disk(path, content):
        write_bytes(path, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "as the disk says", str(path))

    worker = project.worker("{checkpoint_dir}", "2", resume_with=("--resume",))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fill_disk)
        *_, last = worker.run(project.segment(epoch=2, until=4, is_last=False))
    assert (last.outcome, last.unwritable) == ("interrupted", True)
    assert not [*(project.trials / "0").glob("train.csv*")], "no part of the file is left"


def test_trial_continues_when_the_user_has_a_folder_of_checkpoints_by_now(project):
    project.write(RESUMING)
    worker = project.worker("{checkpoint_dir}", "2", resume_with=("--resume",))
    [*worker.run(project.segment(until=2, is_last=False))]
    worker.drop_trial_unless_continued(None)
    (project.folder / "checkpoints").mkdir()
    (project.folder / "checkpoints" / "last").write_text("77")
    worker = project.worker("{checkpoint_dir}", "2", resume_with=("--resume",))
    rest = [*worker.run(project.segment(epoch=2, until=4, is_last=False))]
    worker.drop_trial_unless_continued(None)
    assert losses(rest) == [1 / 3, 1 / 4]
    worker = project.worker("{checkpoint_dir}", "2", resume_with=("--resume",))
    assert losses(worker.run(project.segment(trial=1, until=2, is_last=False))) == [1, 1 / 2]
    worker.drop_trial_unless_continued(None)
    assert (project.trials / "1" / "trial-checkpoints" / "last").exists()
    assert (project.folder / "checkpoints" / "last").read_text() == "77"


@pytest.mark.parametrize("lost", [b"\0" * 40 + b"\n", b'{"step": 1}\n', b"\xff\n"])
def test_program_with_damaged_reports_begins_again(project, lost):
    project.write(RESUMING)
    worker = project.worker("{checkpoint_dir}", "2", resume_with=("--resume",))
    [*worker.run(project.segment(until=2, is_last=False))]
    worker.drop_trial_unless_continued(None)
    kept = project.trials / "0" / ".reports.jsonl"
    kept.write_bytes(lost + kept.read_bytes().splitlines(keepends=True)[1])
    worker = project.worker("{checkpoint_dir}", "4", resume_with=("--resume",))
    reports = [*worker.run(project.segment(epoch=2, until=4, is_last=False))]
    worker.drop_trial_unless_continued(None)
    assert losses(reports)[-2:] == [1 / 3, 1 / 4], "no epoch gets the number of another"


def test_checkpoints_that_cannot_be_listed_interrupt_a_program(project, monkeypatch):
    project.write(RESUMING)
    worker = project.worker("{checkpoint_dir}", "2", resume_with=("--resume",))
    [*worker.run(project.segment(until=2, is_last=False))]
    worker.drop_trial_unless_continued(None)
    listdir, checkpoints = os.listdir, project.trials / "0" / "checkpoints"

    def refuse(path):
        if path == checkpoints:
            raise PermissionError(errno.EACCES, "as the disk says", str(path))
        return listdir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", refuse)
        worker = project.worker("{checkpoint_dir}", "2", resume_with=("--resume",))
        (last,) = worker.run(project.segment(epoch=2, until=4, is_last=False))
    assert (last.outcome, last.unwritable) == ("interrupted", True)
    worker = project.worker("{checkpoint_dir}", "2", resume_with=("--resume",))
    assert losses(worker.run(project.segment(epoch=2, until=4, is_last=False))) == [1 / 3, 1 / 4]
    worker.drop_trial_unless_continued(None)


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


def run_again_without(obstacle, project):
    """Run a trial with `obstacle` in its way, and once more without it. Return why it was interrupted."""
    (interrupted,) = project.worker().run(project.segment())
    assert (interrupted.outcome, interrupted.unwritable) == ("interrupted", True)
    obstacle.rmdir() if obstacle.is_dir() else obstacle.unlink()
    assert end([*project.worker().run(project.segment())]) == ("completed", "")
    return interrupted.reason


@pytest.mark.parametrize("name", ["", "0", ".0.claim"])
def test_file_in_place_of_the_folder_interrupts_a_program(project, name):
    project.write("print('loss 1')")
    obstacle = project.trials / name
    obstacle.parent.mkdir(parents=True, exist_ok=True)
    obstacle.mkdir() if name.startswith(".") else obstacle.write_text("in the way")
    reason = run_again_without(obstacle, project)
    assert re.fullmatch(rf"its folder cannot be written: \[Errno \d+\] [\w ]+: '{obstacle}'", reason)


@pytest.mark.parametrize("place", ["/dev/full", "nowhere/output.txt"], ids=["full", "missing"])
def test_output_that_cannot_be_written_interrupts_a_program(project, place):
    project.write("print('loss 1')")
    obstacle = project.trials / "0" / "output.txt"
    obstacle.parent.mkdir(parents=True)
    obstacle.symlink_to(place)
    assert f"'{obstacle}'" in run_again_without(obstacle, project)


@pytest.mark.parametrize("call", ["write_text", "write_bytes", "symlink_to", "unlink"])
def test_disk_that_takes_no_file_interrupts_a_program(project, monkeypatch, call):
    project.write("print('loss 1')")
    project.write("0" * LARGEST_COPY + "\n", "large.csv")
    project.write("lr: 0.1\n", "config.yaml")
    files = (FileTarget("config.yaml", "lr", "lr"),)
    known = getattr(Path, call)

    def refuse(path, *arguments, **options):
        if project.trials in path.parents and not options.get("missing_ok"):
            raise OSError(errno.EROFS, "as the disk says", str(path))
        return known(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, call, refuse)
        *_, last = project.worker(files=files).run(project.segment(lr=0.5))
    assert (last.outcome, last.unwritable) == ("interrupted", True)
    assert last.reason.startswith(f"its folder cannot be written: [Errno {errno.EROFS}] as the disk says: ")
    assert end([*project.worker(files=files).run(project.segment(lr=0.5))]) == ("completed", "")


def test_file_of_the_user_that_cannot_be_read_fails_its_trial(project, monkeypatch):
    project.write("print('loss 1')")
    project.write("lr: 0.1\n", "config.yaml")
    read_bytes = Path.read_bytes

    def refuse(path):
        if path == project.folder / "config.yaml":
            raise OSError(errno.EIO, "as the disk says", str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    (failed,) = project.worker().run(project.segment())
    assert (failed.outcome, failed.unwritable) == ("failed", False)


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


def test_bucket_that_is_gone_interrupts_a_program(project, s3, monkeypatch):
    project.write("print('loss 1')")
    monkeypatch.setattr(remote_path, "ATTEMPTS", 1)
    root = f"{s3}/trials?endpoint_override=http://127.0.0.1:1"
    (interrupted,) = project.worker(trial_root=root).run(project.segment())
    assert (interrupted.outcome, interrupted.unwritable) == ("interrupted", True)
    assert interrupted.reason.startswith(f"its folder cannot be read: {s3}/trials/0")
    assert interrupted.reason.count(f"{s3}/trials/0") == 1


def test_file_of_a_program_that_cannot_be_read_fails_its_trial(project, s3):
    project.write("import os; os.symlink('loop', 'loop'); print('loss 1')")
    *_, failed = project.worker(trial_root=f"{s3}/trials").run(project.segment())
    assert (failed.outcome, failed.unwritable) == ("failed", False)
    assert os.strerror(errno.ELOOP) in failed.reason


@pytest.mark.parametrize("call", ["rmtree", "iterdir"])
def test_folder_that_its_program_has_closed_fails_its_trial(project, monkeypatch, call):
    project.write("import os; os.makedirs('closed'); open('closed/file', 'w'); print('loss 1')")
    worker = project.worker()
    assert end([*worker.run(project.segment())]) == ("completed", "")
    known = getattr(shutil if call == "rmtree" else Path, call)

    def refuse(path, *arguments, **options):
        if path.name == "closed":
            raise PermissionError(errno.EACCES, "as for another user than root", str(path))
        return known(path, *arguments, **options)

    monkeypatch.setattr(shutil if call == "rmtree" else Path, call, refuse)
    *_, failed = project.worker().run(project.segment())
    assert (failed.outcome, failed.unwritable) == ("failed", False)


def test_bucket_that_takes_no_files_interrupts_a_program(project, s3, monkeypatch):
    project.write("print('loss 1')")
    root = f"{s3}/trials"

    def refuse(path, content):
        raise OSError(f"{path}: as the bucket says")

    with monkeypatch.context() as patch:
        patch.setattr(RemotePath, "write_bytes", refuse)
        reports = [*project.worker(trial_root=root).run(project.segment())]
    assert losses(reports) == [1.0]
    assert reports[-1].unwritable
    file = f"{root}/0/output.txt"
    said = f"its folder cannot be written: {file}: as the bucket says"
    assert end(reports) == ("interrupted", said)
    assert end([*project.worker(trial_root=root).run(project.segment())]) == ("completed", "")
