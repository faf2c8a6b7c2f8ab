"""A mistake on the command line costs one clear line and exit code 2. Nothing is started and nothing is left."""

import os

import pytest
import ray
import yaml


@pytest.fixture(scope="module")
def cli(make_cli):
    return make_cli()


def list_files(cli):
    return sorted(path.name for path in cli.folder.iterdir() if path.name != "__pycache__")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["arcc"],
            "task must be one of arc, liquid, lm or like my_task.py:MyTask, but got 'arcc'. Did you mean 'arc'?",
        ),
        ([], "task must be given: arc, path/to/file.py:ClassName, or -- COMMAND. See --help."),
        (["toy.py:Toi"], "toy.py must define 'Toi', but does not. Did you mean 'Toy'?"),
        (["toy.py:Toy", "--set", "lr"], "--set must be like name=value, but got 'lr'."),
        (["toy.py:Toy", "--search", "lr=oops", "--search", "lr=1e-3..1e-2",
          "--set", "pause_s=0", "how=fine", "pause_s=1", "how=fine", "--trust", "lr"],
         "--set pause_s must be given once, but got pause_s=0 and pause_s=1.\n"
         "--search lr must be given once, but got lr=oops and lr=1e-3..1e-2.\n"
         "--trust must be like name=value, but got 'lr'."),
        (["toy.py:Toy", "--scheduler", "pbt", "--set", "epochs=9", "--trials", "4",
          "--try", "lr=0.02", "--try", "lr=0.03"],
         "--population must be at least 3 for the task's defaults and 2 points to try, but is 2: "
         "the trials beyond it are copies. Raise it or leave out a --try."),
        (["toy.py:Toy", "--believe", "lr=7,1e-2"],
         "--believe lr must lie in the searched range, 0.0001..0.1:log, but got 7."),
        (["toy.py:Toy", "--believe", "lr=7", "--sizes", "accumulation=1,2"],
         "\n".join(f"at size accumulation{number}: --believe lr must lie in the searched range, 0.0001..0.1:log, but "
                   "got 7." for number in (1, 2))),
        (["toy.py:Toy", "--believe", "lrr=1e-2"],
         "--believe lrr must name a parameter, but there is no 'lrr'. Did you mean 'lr'?"),
        (["toy.py:Toy", "--believe", "lr=1e-2", "--sampler", "gp"],
         "--believe must come with --sampler mixture or tpe, but got gp."),
        (["toy.py:Toy", "--believe", "lr=1e-2", "--objective", "val/loss", "--objective", "val/latency:min"],
         "--believe must come with one --objective, but got 2."),
        (["toy.py:Toy", "--trust", "lr=high"], "--trust must come with --sampler mixture, but got tpe."),
        (["toy.py:Toy", "--grace-period", "40"], "--grace-period must be at most a trial's 9 epochs, but got 40."),
        (["toy.py:Toy", "--name", "n" * 300], f"--name must have at most 200 bytes, but got 300: {'n' * 20}..."),
        (["toy.py:Toy", "--experiment", "n" * 10_000, "--objective", "val/loss",
          "--objective", f"{'m' * 10_000}:min"],
         f"--experiment must have at most 256 characters for MLflow, but got 10000: {'n' * 20}...\n"
         f"--objective must have at most 235 characters for MLflow, but got 10000: {'m' * 20}..."),
        (["toy.py:Toy", "--sizes", "accumulation=1,2", "--experiment", "n" * 300],
         "\n".join(f"at size accumulation{number}: --experiment must have at most 256 characters for MLflow, but got "
                   f"300: {'n' * 20}..." for number in (1, 2))),
        (["--config", "/dev/full"], "--config must be a YAML file, but /dev/full is not: unacceptable character "
                                    '#x0000: special characters are not allowed in "<unicode string>", position 0'),
        (["toy.py:Toy", "--workers", "1000"], "--workers times --cpus-per-worker must be at most the {cpus} CPUs of "
                                              "this machine, but got 1000."),
        (["toy.py:Toy", "--concurrency", "1000"], "--concurrency must be at most {cpus} with the {cpus} CPUs of this "
                                                  "machine, but got 1000."),
        (["toy.py:Toy", "--set", "lr=1e-2", "precision=fp32"], "a parameter must be searched to try 16 trials, but "
                                                               "all are fixed. Use --once."),
        (["toy.py:Toy", "--warm-start", "old", "--warm-start", "mlflow:theirs"],
         "--warm-start must be a search, its folder or mlflow:EXPERIMENT, but there is no {folder}/runs/old.\n"
         "--warm-start mlflow:theirs must be in a store that exists, but there is no {folder}/runs/mlflow.db."),
        (["toy.py:Toy", "--set", "lr=x", "hwo=fine", "--search", "pause_s=2..1"],
         "--set hwo must name a parameter, but there is no 'hwo'. Did you mean 'how'?\n"
         "--set lr must be a valid number, but got 'x'.\n"
         "--search pause_s must have low < high, but got 2..1. Swap the bounds."),
    ],
)  # fmt: skip
def test_mistake_costs_one_line_and_starts_nothing(cli, arguments, line):
    before = list_files(cli)
    done = cli.invoke(*arguments)
    expected = line.format(cpus=len(os.sched_getaffinity(0)), folder=cli.folder)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (2, "", expected)
    assert not ray.is_initialized()
    assert list_files(cli) == before


LONG = "x" * 10_000


@pytest.mark.parametrize(
    "arguments",
    [
        ["toy.py:Toy", "--storage", LONG, "--dry-run"],
        ["toy.py:Toy", "--storage", f"/{'y' * 200}" * 30],
        ["toy.py:Toy", "--study", f"sqlite:///{LONG}.db", "--dry-run"],
        ["toy.py:Toy", "--warm-start", LONG],
        ["--config", LONG],
        ["--resume", LONG],
        ["--resume", "one", "--storage", LONG],
        ["--list", "--storage", LONG],
    ],
    ids=lambda arguments: "".join(word[:12] for word in arguments),
)
def test_path_that_is_too_long_costs_one_short_line(cli, arguments):
    done = cli.invoke(*arguments)
    assert done.returncode == 2
    assert len(done.stderr) < 200
    assert done.stderr.startswith("a path must have at most 255 bytes in each name and 4095 in all, but got ")
    assert done.stderr.count("\n") == 1


def test_value_that_is_too_long_is_shortened(cli):
    for arguments in ([f"{LONG}.py:Toy"], ["toy.py:Toy", "--study", f"postgresql://127.0.0.1:1/{LONG}"]):
        done = cli.invoke(*arguments)
        assert (done.returncode, done.stderr.count("\n"), "..." in done.stderr) == (2, 1, True)
        assert len(done.stderr) < 1000
    assert cli.invoke(LONG, script="search/report.py").stderr.startswith("a path must have at most 255 bytes")


def test_mistake_in_a_shell_ends_with_exit_code_two(cli):
    done = cli.run("arcc")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("broken.py", "import nothing_of_that_name\n", "broken.py must be importable, but raised ModuleNotFoundError"),
        ("leaving.py", "raise SystemExit(0)\n", "must be importable, but raised SystemExit"),
    ],
)
def test_task_file_that_cannot_be_imported_is_refused(cli, name, source, message):
    (cli.folder / name).write_text(source)
    done = cli.invoke(f"{name}:Task")
    (cli.folder / name).unlink()
    assert done.returncode == 2
    assert message in done.stderr


def test_dry_run_prints_a_search_that_can_be_run(cli):
    """What the task prints when it is imported goes to standard error."""
    (cli.folder / "loud.py").write_text("print('hello')\nfrom toy import Toy\n")
    values = ["--set", "how=fine", "pause_s=0.1", "--try", "lr=3e-2,precision=bf16"]
    done = cli.run("loud.py:Toy", "--trials", "5", *values, "--dry-run")
    assert (done.returncode, "hello" in done.stderr) == (0, True)
    assert yaml.safe_load(done.stdout)["trials"] == 5
    assert not (cli.folder / "runs").exists()
    assert "# tried first: precision=fp32, lr=0.01\n# tried first: precision=bf16, lr=0.03\n" in done.stdout
    assert "# searched: lr 0.0001..0.1:log" in done.stdout
    assert "# fixed: pause_s 0.1" in done.stdout
    (cli.folder / "again.yaml").write_text(done.stdout)
    assert cli.invoke("--config", "again.yaml", "--dry-run").stdout == done.stdout
    assert "# fixed: pause_s 0.2" in cli.invoke("--config", "again.yaml", "pause_s=0.2", "--dry-run").stdout
    (cli.folder / "loud.py").unlink()
