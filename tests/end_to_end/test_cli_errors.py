"""A mistake on the command line: one clear line, exit code 2, nothing started and nothing left behind."""

import os
import time

import pytest


@pytest.fixture(scope="module")
def cli(make_cli):
    return make_cli()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["arcc"], "task must be one of arc, liquid or like my_task.py:MyTask, but got 'arcc'. Did you mean 'arc'?"),
        ([], "task must be given: arc, or path/to/file.py:ClassName. See --help."),
        (["toy.py:Toi"], "toy.py must define 'Toi', but does not. Did you mean 'Toy'?"),
        (["toy.py:Toy", "--set", "hwo=fine"], "--set hwo must name a parameter, but there is no 'hwo'. "
                                              "Did you mean 'how'?"),
        (["toy.py:Toy", "--search", "lr=1e-2..1e-5"], "--search lr must have low < high, but got 1e-2..1e-5. "
                                                      "Swap the bounds."),
        (["toy.py:Toy", "--set", "lr=fast"], "--set lr must be a valid number, but got 'fast'."),
        (["toy.py:Toy", "--set", "precision=fp8"], "--set precision must be 'fp32', 'bf16', 'fp16' or 'auto', "
                                                       "but got 'fp8'."),
        (["toy.py:Toy", "--set", "lr"], "--set must be like name=value, but got 'lr'."),
        (["toy.py:Toy", "--trials", "many"], "--trials must be a valid integer, but got 'many'."),
        (["toy.py:Toy", "--search", "epochs=1..9"], "--search epochs must come with --scheduler none: "
                                                    "it is what the scheduler decides on."),
        (["toy.py:Toy", "--fidelity", "gpu-seconds"], "--max-fidelity must come with --fidelity gpu-seconds, but got "
                                                      "none. Say what a trial gets at most: 600 or 10m."),
        (["toy.py:Toy", "--try", "lr=7"], "--try lr must lie in what is searched, 0.0001..0.1:log, but got 7."),
        (["toy.py:Toy", "--stop-when", "val/loss=1"], "--stop-when must be like val/score>=0.4, with one of >= > <= <, "
                                                      "but got 'val/loss=1'."),
        (["toy.py:Toy", "--once", "--patience", "3"], "--once must come without --patience: "
                                                      "it is one run with fixed parameters."),
        (["toy.py:Toy", "--scheduler", "pbt", "--set", "epochs=9", "--trials", "4",
          "--try", "lr=0.02", "--try", "lr=0.03"],
         "--population must be at least 3 for the task's defaults and 2 points to try, but is 2: "
         "the trials beyond it are copies. Raise it or leave out a --try."),
        (["toy.py:Toy", "--patience", ""], "--patience must be a valid integer, but got ''."),
        (["toy.py:Toy", "--register", "a/b"], "--register must be a name of letters, digits, spaces, '.', '_' or '-', "
                                              "but got 'a/b'."),
        (["toy.py:Toy", "--population", "4"], "--population must come with --scheduler pbt, but got asha."),
    ],
)  # fmt: skip
def test_a_mistake_costs_one_line_and_nothing_else(cli, arguments, line):
    before = sorted(path.name for path in cli.folder.iterdir() if path.name != "__pycache__")
    start = time.monotonic()
    done = cli.run(*arguments)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (2, "", line)
    assert time.monotonic() - start < 15, "Ray must not have been started"
    assert sorted(path.name for path in cli.folder.iterdir() if path.name != "__pycache__") == before


def test_more_workers_than_the_machine_holds_are_refused_with_what_it_has(cli):
    done = cli.run("toy.py:Toy", "--workers", "1000")
    assert done.returncode == 2
    have = len(os.sched_getaffinity(0))
    assert done.stderr.strip() == (
        f"--workers times --cpus-per-worker must be at most the {have} CPUs of this machine, but got 1000."
    )


def test_more_trials_at_a_time_than_fit_are_refused_with_how_many_do(cli):
    have = len(os.sched_getaffinity(0))
    done = cli.run("toy.py:Toy", "--concurrency", "1000")
    assert done.returncode == 2
    assert done.stderr.strip() == (
        f"--concurrency must be at most {have} with the {have} CPUs of this machine, but got 1000."
    )


def test_a_warm_start_from_nothing_is_refused_and_leaves_nothing(cli):
    done = cli.run("toy.py:Toy", "--warm-start", "old", "--warm-start", "mlflow:theirs")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"--warm-start must be a search, its folder or mlflow:EXPERIMENT, but there is no {cli.folder}/runs/old.",
        f"--warm-start mlflow:theirs must be in a store that exists, but there is no {cli.folder}/runs/mlflow.db.",
    ]
    assert not (cli.folder / "runs").exists()


def test_a_dry_run_shows_what_is_tried_first(cli):
    done = cli.run("toy.py:Toy", "--try", "lr=3e-2,precision=bf16", "--dry-run")
    assert "# tried first: precision=fp32, lr=0.01\n# tried first: precision=bf16, lr=0.03\n" in done.stdout


def test_an_unwritable_storage_folder_is_refused(cli):
    done = cli.run("toy.py:Toy", "--storage", str(cli.folder / "toy.py" / "runs"))
    assert done.returncode == 2
    assert "--storage must be a folder that can be written to, but got" in done.stderr


def test_a_name_that_exists_is_refused(cli):
    (cli.folder / "runs" / "taken").mkdir(parents=True)
    done = cli.run("toy.py:Toy", "--name", "taken")
    (cli.folder / "runs" / "taken").rmdir()
    (cli.folder / "runs").rmdir()
    assert done.returncode == 2
    assert done.stderr.strip() == f"--name must be new, but taken exists in {cli.folder}/runs. Choose another."


def test_an_unknown_option_is_told_with_the_nearest(cli):
    done = cli.run("toy.py:Toy", "--trails", "3")
    assert done.returncode == 2
    assert "No such option: --trails" in done.stderr
    assert "--trials" in done.stderr


def test_several_mistakes_are_told_at_once(cli):
    done = cli.run("toy.py:Toy", "--set", "lr=x", "hwo=fine", "--search", "pause_s=2..1")
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 3)


def test_a_file_that_cannot_be_imported_is_refused_with_its_error(cli):
    (cli.folder / "broken.py").write_text("import nothing_of_that_name\n")
    done = cli.run("broken.py:Task")
    (cli.folder / "broken.py").unlink()
    assert done.returncode == 2
    assert "broken.py must be importable, but raised ModuleNotFoundError" in done.stderr


@pytest.mark.parametrize("name", ["random.py", "torch.py"])
def test_a_file_with_the_name_of_a_library_is_refused(cli, name):
    (cli.folder / name).write_text("")
    done = cli.run(f"{name}:Task")
    (cli.folder / name).unlink()
    assert done.returncode == 2
    assert "Rename it" in done.stderr or "must not have the name of an installed module" in done.stderr


def test_a_file_beside_the_task_that_would_hide_a_module_from_ray_is_refused_by_name(cli):
    (cli.folder / "queue.py").write_text("")
    done = cli.run("toy.py:Toy")
    (cli.folder / "queue.py").unlink()
    assert done.returncode == 2
    assert "must have the name of a module that Ray needs, but queue.py has" in done.stderr


def test_what_a_task_prints_and_that_it_exits_when_imported_does_not_reach_the_caller(cli):
    (cli.folder / "loud.py").write_text("print('hello')\nfrom toy import Toy\n")
    loud = cli.run("loud.py:Toy", "--dry-run")
    (cli.folder / "loud.py").write_text("raise SystemExit(0)\n")
    leaving = cli.run("loud.py:Toy", "--dry-run")
    (cli.folder / "loud.py").unlink()
    assert "hello" in loud.stderr
    assert loud.stdout.startswith("task: ")
    assert leaving.returncode == 2
    assert "must be importable, but raised SystemExit" in leaving.stderr


def test_a_search_over_nothing_is_refused(cli):
    done = cli.run("toy.py:Toy", "--set", "lr=1e-2", "precision=fp32")
    assert done.returncode == 2
    assert done.stderr.strip() == "a parameter must be searched to try 16 trials, but all are fixed. Say --once."


def test_a_cluster_that_does_not_answer_is_a_mistake_and_leaves_nothing(cli):
    cli.env["RAY_ADDRESS"] = "127.0.0.1:1"
    done = cli.run("toy.py:Toy")
    del cli.env["RAY_ADDRESS"]
    assert done.returncode == 2, done.stderr
    assert "RAY_ADDRESS must be a Ray cluster that answers, but got 127.0.0.1:1" in done.stderr
    assert not (cli.folder / "runs").exists()


def test_a_dry_run_prints_a_search_that_can_be_run_and_writes_nothing(cli):
    done = cli.run("toy.py:Toy", "--trials", "5", "--set", "how=fine", "pause_s=0.1", "--dry-run")
    assert done.returncode == 0
    assert not (cli.folder / "runs").exists()
    (cli.folder / "again.yaml").write_text(done.stdout)
    again = cli.run("--config", "again.yaml", "--dry-run")
    assert again.stdout == done.stdout
    other = cli.run("--config", "again.yaml", "pause_s=0.2", "--dry-run")
    assert "# fixed: pause_s 0.2" in other.stdout
    assert "# searched: lr 0.0001..0.1:log" in done.stdout
    assert "# fixed: pause_s 0.1" in done.stdout
