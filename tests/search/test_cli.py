import json
import subprocess
import sys

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from searchlight.search.cli import searchlight
from searchlight.search.config.search_config import OPTIONS


def names_of(command):
    return {name for parameter in searchlight.get_command(None, command).params for name in parameter.opts}


def test_run_and_resume_have_the_options_of_the_script():
    on_command_line = {option.name: option.resumable for option in OPTIONS if option.is_on_command_line}
    own = {"task", "more", "--config", "--dry-run", "--preflight", "--try-first", "--json"}
    assert names_of("run") == {*on_command_line, *own}
    resumable = {name for name, is_resumable in on_command_line.items() if is_resumable}
    assert names_of("resume") == {*resumable, "--storage", "name", "--json"}


@pytest.mark.parametrize(
    ("arguments", "incomplete", "completed"),
    [([], "re", {"report", "resume"}), (["run"], "--sched", {"--scheduler"}), (["report"], "--repl", {"--replay"})],
)
def test_shell_completes_commands_and_options(arguments, incomplete, completed):
    complete = BashComplete(searchlight, {}, "searchlight", "_SEARCHLIGHT_COMPLETE")
    assert {item.value for item in complete.get_completions(arguments, incomplete)} == completed


def test_search_with_a_deeply_nested_file_is_listed_with_its_error(tmp_path):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "search.yaml").write_text("[" * 10_000)
    done = CliRunner().invoke(searchlight, ["list", "--storage", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "damaged" in done.output
    assert "search.yaml must say where the study is, but cannot be read: maximum recursion depth" in done.output


def test_search_is_listed_and_a_missing_one_is_refused(tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "search.yaml").touch()
    listed = CliRunner().invoke(searchlight, ["list", "--storage", str(tmp_path), "--json"])
    assert [search["name"] for search in json.loads(listed.stdout)] == ["broken"]
    missing = CliRunner().invoke(searchlight, ["resume", "nothing", "--storage", str(tmp_path)])
    assert missing.exit_code == 2
    assert f"name must be a search in {tmp_path}" in missing.stderr
    assert f"list --storage {tmp_path} shows all searches. " in missing.stderr
    (tmp_path / "file").touch()
    for name, code, out in (("new", 0, f"no searches in {tmp_path / 'new'} yet\n"), ("file", 2, "")):
        listed = CliRunner().invoke(searchlight, ["list", "--storage", str(tmp_path / name)])
        assert (listed.exit_code, listed.stdout) == (code, out)


def test_help_of_resume_says_that_options_stay():
    shown = " ".join(CliRunner().invoke(searchlight, ["resume", "-h"]).stdout.split())
    assert "Number of workers of each trial. Default: as before." in shown
    assert {text.split(".")[0] for text in shown.split("Default: ")[1:]} == {"as before", "runs"}
    assert "Default: 16." in CliRunner().invoke(searchlight, ["run", "--help"]).stdout
    assert CliRunner().invoke(searchlight, ["-h"]).exit_code == 0


@pytest.mark.parametrize("module", ["cli", "run"])
def test_help_needs_no_library_of_tasks_and_samplers(module):
    code = f"import sys, searchlight.search.{module}; print(sorted({{'ray', 'scipy', 'torch'}} & {{*sys.modules}}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_written_task_can_be_searched_and_is_not_overwritten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = CliRunner().invoke(searchlight, ["init", "mine.py"])
    assert (written.exit_code, written.stdout.splitlines()[0]) == (0, "written: mine.py")
    command = ["run", *written.stdout.split(" run ")[1].split()]
    planned = CliRunner().invoke(searchlight, [*command, "--dry-run", "--search", "hidden=8..64"])
    assert (planned.exit_code, planned.stdout.splitlines()[:2]) == (
        0,
        [f"task: {tmp_path}/mine.py:MyTask", "trials: 20"],
    )
    assert CliRunner().invoke(searchlight, ["init", "."]).stdout.startswith("written: my_task.py\n")
    for file, problem in (
        ("mine.py", "must be new"),
        (".", "but my_task.py exists"),
        ("mine", "must end in .py"),
        ("no/mine.py", "can be written to"),
    ):
        refused = CliRunner().invoke(searchlight, ["init", file])
        assert refused.exit_code == 2
        assert problem in refused.stderr


def test_run_prints_the_plan_of_a_search(tmp_path):
    done = CliRunner().invoke(searchlight, ["run", "arc", "--storage", str(tmp_path), "--dry-run", "policy_lr=1e-3"])
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "task: arc"), done.stderr
