import re
import shlex
import sys

import pytest
from click.testing import CliRunner
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from searchlight.search.command.try_first import choose_middle, get_mode, propose_objectives, propose_patterns
from searchlight.search.run import main
from searchlight.trainables.command.output import OutputPatterns
from tests.trainables.command.programs import ROOT


@pytest.fixture
def try_first(tmp_path, monkeypatch):
    """Return a function that runs `--try-first` with a program, and returns its exit code and its lines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(text, *options, words=()):
        (tmp_path / "train.py").write_text(text)
        given = ["--try-first", "5m", "--search", "lr=0.01..1.0", "--flags", "none", *options]
        done = CliRunner().invoke(main, [*given, "--", sys.executable, "train.py", *words])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output.splitlines()

    return run


REPORTS = """
import searchlight
for step in range(3):
    searchlight.report(step, eval_loss=1 / (step + 1), train_loss=2.5, runtime=7)
"""


def test_metrics_are_listed_and_an_objective_is_proposed(try_first):
    code, (first, *table, proposal, others) = try_first(REPORTS)
    assert code == 0
    assert re.fullmatch(r"the command ran \d+ s until it ended", first)
    assert [line.split() for line in table] == [
        ["metric", "values", "last", "from"],
        ["eval_loss", "3", "0.3333", "searchlight.report"],
        ["runtime", "3", "7", "searchlight.report"],
        ["train_loss", "3", "2.5", "searchlight.report"],
    ]
    assert (proposal, others) == ("proposed: --objective eval_loss:min", "or one of: train_loss:min")


def test_objective_that_was_heard_is_enough(try_first):
    code, lines = try_first(REPORTS, "--objective", "runtime:min")
    assert (code, len(lines)) == (0, 5)


def test_program_without_an_end_is_stopped(try_first):
    text = "import time, searchlight\nwhile True: searchlight.report(loss=1); time.sleep(0.1)"
    code, lines = try_first(text, "--try-first", "5s")
    assert code == 0
    assert re.fullmatch(r"the command ran \d+ s and was stopped", lines[0])


def test_printed_metric_is_proposed_as_an_expression_that_reads_it(try_first):
    text = "print('step 0: train loss 4.25, val loss 4.5')"
    code, lines = try_first(text, "--objective", "val/loss:min")
    assert (code, lines[1]) == (0, "proposed:")
    words = shlex.split(lines[-2])
    assert words[0::2] == ["--metric", "--objective"]
    assert words[3] == "val/loss:min"
    code, lines = try_first(text, *words)
    assert (code, lines[-1].split()) == (0, ["val/loss", "1", "4.5", "output"])


def test_program_without_metrics_shows_its_last_lines(try_first):
    code, lines = try_first("print('hello')")
    assert code == 1
    assert lines[1:3] == ["missing: no metric was heard", "  hello"]
    assert "--metric NAME=REGEX" in lines[3]


def test_failure_is_shown_with_its_traceback(try_first):
    code, lines = try_first("1 / 0")
    assert (code, lines[-2]) == (1, "ZeroDivisionError: division by zero")
    assert lines[-1].startswith("the command failed: exit code 1")


def test_trial_leaves_no_file_with_the_user(try_first, tmp_path):
    try_first("import searchlight; open('mine', 'w'); searchlight.report(loss=1)")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_named_parameter_has_a_value_of_its_range(try_first):
    code, lines = try_first("import sys, searchlight; searchlight.report(loss=float(sys.argv[1]))", words=["{lr}"])
    assert (code, lines[2].split()[2]) == (0, "0.505")


def test_value_that_the_command_gives_to_a_searched_option_is_kept(try_first):
    text = """
import argparse, searchlight
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
searchlight.report(loss=parser.parse_args().lr)
"""
    code, lines = try_first(text, "--flags", "auto", words=["--lr", "7.5"])
    assert (code, lines[2].split()[2]) == (0, "7.5"), lines


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--try-first", "soon", "--", "python"], "--try-first must be like 90s, 30m or 2h, but got 'soon'."),
        *(
            (
                options,
                "--try-first must come with a command, but got the task arc: searchlight run --try-first -- "
                "python train.py",
            )
            for options in (["arc", "--try-first"], ["--try-first", "arc"])
        ),
        (
            ["--resume", "name", "--try-first"],
            "--resume must come without --config, --dry-run, --preflight and --try-first: the search continues as it "
            "began.",
        ),
    ],
)
def test_wrong_use_is_refused(options, message):
    done = CliRunner().invoke(main, options)
    assert (done.exit_code, done.stderr) == (2, f"{message}\n")


def test_function_of_a_program_may_follow_the_option(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("def main():\n    print('accuracy 0.5')\nmain()\n")
    done = CliRunner().invoke(main, ["--try-first", "train.py:main"])
    assert "--objective accuracy:max" in done.output


@pytest.mark.parametrize(
    ("names", "best"),
    [
        (["loss", "learning_rate", "epoch"], "loss:min"),
        (["charts/episodic_return", "losses/value_loss", "charts/SPS"], "charts/episodic_return:max"),
        (["val_acc", "train_acc", "val_loss"], "val_acc:max"),
        (["valid/ppl", "train/ppl"], "valid/ppl:min"),
        (["eval_loss", "eval_runtime", "eval_samples_per_second", "grad_norm"], "eval_loss:min"),
        (["test_f1", "lr"], "test_f1:max"),
    ],
)
def test_objective_is_proposed_by_its_name(names, best):
    assert propose_objectives(dict.fromkeys(names, 1))[0] == best


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("neg_log_likelihood", "min"),
        ("val/negative_log_likelihood", "min"),
        ("NegLogLikelihood", "min"),
        ("brier_score", "min"),
        ("neg_loss", "max"),
        ("test_neg_mean_squared_error", "max"),
        ("neg_mse", "max"),
        ("neg_brier_score", "max"),
        ("neg_recall", ""),  # of the negative examples, or the negative of it
        ("negotiation_reward", "max"),
        ("loss_neg", "min"),
    ],
)
def test_name_of_a_metric_says_its_mode(name, mode):
    assert get_mode(name) == mode


def test_both_words_of_a_printed_name_say_its_mode():
    modes = {metric.name: metric.mode for metric in propose_patterns(("Brier score: 0.2, neg MSE -0.5, neg recall 1",))}
    assert modes == {"brier_score": "min", "neg_mse": "max"}
    (metric,) = propose_patterns(("neg log loss: -0.1",))
    assert (metric.name, metric.mode) == ("neg_log_loss", "max")


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("step 250: train loss 1.9, val loss 2.0431", "val_loss", 2.0431),  # nanoGPT
        ("Test set: Average loss: 0.2500, Accuracy: 9300/10000 (93%)", "average_loss", 0.25),  # PyTorch's MNIST
        ("global_step=2000, episodic_return=[9.]", None, None),  # the number is in a list
        ("epoch 0: {'accuracy': 0.6838, 'f1': 0.8122}", "accuracy", 0.6838),  # Accelerate's nlp_example
        ("[GPU0] Epoch 3 | Batchsize: 32 | Loss: 0.125", "loss", 0.125),
        (" 50%|#####     | 1/2 [00:01<00:01, loss=0.5, acc=0.75]", "acc", 0.75),
        ("hello world 7", None, None),
    ],
)
def test_expression_is_proposed_that_reads_the_metric(line, name, value):
    found = {metric.name: metric.pattern for metric in propose_patterns((line,))}
    assert (name in found) if name else not found
    if name:
        (measured,) = OutputPatterns([f"x={found[name]}"]).find(line)
        assert measured.metrics == {"x": value}


TIMM = (
    "Train: 0 [1000/1000 (100%)]  Loss: 1.37 (1.37)  LR: 5.000e-02",
    "Test: [   2/2]  Loss: 1.30 (1.30)  Acc@1:  56.000 (56.600)",
    "* Acc@1 56.600 Acc@5 99.000 loss 1.2861",
)
MMDET = ("Epoch(train) [1][50]  loss_cls: 0.5", "Epoch(val) [1][50]  bbox_mAP: 0.25, loss_cls: 0.75")


@pytest.mark.parametrize(
    ("lines", "values"),
    [
        (TIMM, {"acc_1": 56.6, "acc_5": 99.0, "loss": 1.2861}),
        (MMDET, {"bbox_map": 0.25, "loss_cls": 0.75}),
        (("train loss 2.0", "loss 3.0", "valid loss 1.0"), {"valid_loss": 1.0, "loss": 3.0, "train_loss": 2.0}),
    ],
)
def test_metric_of_an_evaluation_is_proposed_before_that_of_the_training(lines, values):
    proposed = propose_patterns(lines)
    assert [metric.name for metric in proposed] == [*values]
    for metric in (metric for metric in proposed if metric.is_held_out):
        found = [each.metrics["x"] for line in lines for each in OutputPatterns([f"x={metric.pattern}"]).find(line)]
        assert found == [values[metric.name]], "and no line of the training"


def test_expression_for_a_colored_line_reads_it(try_first):
    program = r"print('\x1b[1mloss\x1b[0m: \x1b[31m0.5\x1b[0m')"
    words = shlex.split(try_first(program)[1][2])
    assert words[:2] == ["--metric", r"loss=loss: ([-+.\w]+)"]
    assert try_first(program, *words)[0] == 0


@pytest.mark.parametrize("line", ["class_loss: 2.0 loss: 0.5", "a/loss: 2.0, loss: 0.5", "train loss: 2.0, loss: 0.5"])
def test_expression_for_a_short_name_reads_no_longer_one(line):
    (pattern,) = (metric.pattern for metric in propose_patterns((line,)) if metric.name == "loss")
    (measured,) = OutputPatterns([f"x={pattern}"]).find(line)
    assert measured.metrics == {"x": 0.5}


@pytest.mark.parametrize("line", ["1_loss: 0.5", "Average val loss: 0.5", "a val loss: 0.5 val loss: 0.5"])
def test_expression_reads_its_own_line(line):
    (metric,) = propose_patterns((line,))
    (measured,) = OutputPatterns([f"x={metric.pattern}"]).find(line)
    assert measured.metrics == {"x": 0.5}


def test_only_the_begin_of_a_long_line_is_searched():
    assert [metric.name for metric in propose_patterns((f"loss 0.5 {'x' * 10_000} accuracy 0.5",))] == ["loss"]


def test_loss_that_may_be_of_the_training_is_named_as_such(try_first):
    warning = "loss may be a loss of the training: neither it nor its line says val, test or eval"
    assert try_first("print('loss: 0.5')")[1][-1] == warning
    assert try_first("import searchlight; searchlight.report(loss=1)")[1][-1] == warning
    assert warning not in try_first("print('* Loss: 0.5')")[1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.txt", '{"epoch": 1, "train_lr": 0.1, "test_acc1": 0.5}\n'),
        ("logs/metrics.csv", "epoch,test_acc1\n1,0.5\n"),
    ],
)
def test_file_of_metrics_is_proposed_and_read(try_first, name, text):
    program = f"import os; os.makedirs('logs', exist_ok=True); open({name!r}, 'w').write({text!r})"
    code, lines = try_first(program)
    assert (code, lines[1]) == (0, "proposed:")
    words = shlex.split(lines[2])
    assert words == ["--metrics-file", f"{{trial_dir}}/{name}", "--objective", "test_acc1:max"]
    code, lines = try_first(program, *words)
    assert code == 0, lines


@pytest.mark.parametrize(
    ("distribution", "middle"),
    [
        (FloatDistribution(0, 1), 0.5),
        (FloatDistribution(1e-4, 1e-2, log=True), 1e-3),
        (IntDistribution(1, 4), 3),
        (IntDistribution(16, 64, step=16), 48),
        (CategoricalDistribution(["a", "b"]), "a"),
    ],
)
def test_middle_of_a_range_is_in_it(distribution, middle):
    chosen = choose_middle(distribution)
    assert chosen == pytest.approx(middle) if isinstance(middle, float) else chosen == middle
