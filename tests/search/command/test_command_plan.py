"""A search of a command as it is planned, before Ray starts."""

import sys

import pytest

from searchlight.search.config import SearchConfig
from searchlight.search.config.loading import resolve_config
from searchlight.search.errors import UsageError
from searchlight.search.experiment.opening import create_search
from searchlight.search.experiment.plan import plan
from searchlight.search.reporting.console.listing import print_plan
from searchlight.search.run import main
from searchlight.trainables.command.template import fill
from tests.search.refusals import problems_of

SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
for name in ("--learning-rate", "--epochs", "--seed", "--depth"):
    parser.add_argument(name, type=float)
parser.parse_args()
raise SystemExit("it must not train")
"""


SEED_REMEDY = "Name {seed} in it, give --seed-flag NAME, or let its code take searchlight.params()['seed']"


@pytest.fixture
def make_plan(tmp_path, monkeypatch):
    """Plans the search of a script, which has files beside it that nothing may import."""
    (tmp_path / "train.py").write_text(SCRIPT)
    for name in ("search.py", "logging.py", "my-script.py"):
        (tmp_path / name).write_text("raise SystemExit('imported')")
    (tmp_path / "logging.py").unlink()  # the script itself would import it
    monkeypatch.chdir(tmp_path)

    def make(*words, **options):
        options = {"search": {"learning-rate": "1e-4..1e-1:log"}, "objective": "loss:min", **options}
        return plan(resolve_config(SearchConfig(command=[sys.executable, "train.py", *words], **options)))

    return make


def test_parameters_reach_the_program_by_its_own_options(make_plan, tmp_path):
    planned = make_plan("--seed", "{seed}", set={"epochs": "3"}, name="a")
    assert (planned.config.task, planned.config.scheduler) == ("train.py", "median")
    assert planned.command.flags["learning-rate"].on == ("--learning-rate", "{value}")
    assert planned.command.flags["epochs"].on == ("--epochs", "{value}")
    assert planned.command.trial_root == str(tmp_path / "runs" / "a" / "trials")
    assert planned.command.objectives == ("loss",)
    assert planned.confirmation is not None
    reason = "because the command cannot resume without {checkpoint_dir} or --resume-with"
    assert planned.notes == (
        f"scheduler median: no trial pauses, {reason}",
        "the defaults are neither tried nor compared: the program's own value of learning-rate is not known",
    )


@pytest.mark.parametrize(
    ("words", "options", "scheduler"),
    [
        ([], {}, "median"),
        ([], {"set": {"epochs": "9"}}, "median"),
        ([], {"max_fidelity": 9}, "median"),
        ([], {"fidelity": "gpu-seconds", "max_fidelity": "10m"}, "asha-stop"),
        (["{checkpoint_dir}"], {"set": {"epochs": "9"}}, "hyperband"),
        ([], {"set": {"epochs": "9"}, "resume_with": "--resume"}, "hyperband"),
        (["{checkpoint_dir}"], {}, "median"),
        ([], {"scheduler": "none"}, "none"),
    ],
)
def test_scheduler_is_the_best_one_that_the_command_allows(make_plan, words, options, scheduler):
    planned = make_plan(*words, flags="--{name}={value}", **options)
    assert planned.config.scheduler == scheduler
    assert resolve_config(planned.config).scheduler == scheduler, "also when it is resumed"


def test_command_without_a_seed_confirms_nothing(make_plan):
    planned = make_plan()
    assert planned.confirmation is None
    assert f"no confirming runs: the command takes no seed. {SEED_REMEDY}" in planned.notes
    assert make_plan(seed_flag="seed").confirmation is not None


def test_seeds_in_the_code_of_a_script_are_proposed(make_plan, tmp_path):
    others = """
seed = random.randint(0, 1000)
n_seeds = 5
SEEDS = [0, 1]
def set_seed(seed=42): ...
train, test = train_test_split(x, seed=1)
loader = shuffle(x, seed=1)
def load(data_seed=2, seeded=True): ...
"""
    seeds = "random.seed(0)\ntorch.manual_seed(1)\nset_seed(2)\ndef main(seed=2, random_seed='a'): ...\nSEED = 3"
    with (tmp_path / "train.py").open("a") as file:
        file.write(f"\n{others}\n{seeds}\n")
    places = ("random.seed.0", "torch.manual_seed.0", "set_seed.0", "main.seed", "SEED")
    patches = [f"train.py:{place}=seed" for place in places]

    def remedy(patches):
        given = " ".join(f"--patch {patch}" for patch in patches)
        proposal = f"Give {given} if the code decides it, or --seed-flag NAME if an option does"
        return f"no confirming runs: the command takes no seed. {proposal}"

    assert remedy(patches) in make_plan().notes
    assert make_plan(patch=patches).confirmation is not None
    other = {"search": {"depth": "1..9"}, "patch": ["train.py:SEED=depth"]}
    assert remedy(patches[:-1]) in make_plan(**other).notes
    assert f"no confirming runs: the command takes no seed. {SEED_REMEDY}" in make_plan(cwd="here").notes


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"objective": ()}, "--objective must be given, e.g. val/loss:min: the metric that train.py reports and is "
                            "judged by."),
        ({"scheduler": "asha", "set": {"epochs": "3"}},
         "--scheduler asha pauses trials, so the command must be able to resume: name {checkpoint_dir} in it, or give "
         "--resume-with. Otherwise use asha-stop, median or none."),
        ({"scheduler": "asha-stop"},
         "--set epochs=N must be given with --scheduler asha-stop: how many reports a trial makes. With median or "
         "none it ends when its program ends."),
        ({"scheduler": "pbt", "set": {"epochs": "3"}},
         "--scheduler must be another one with a command, but got pbt: it copies weights between trials."),
        ({"workers": 2}, "--workers must be 1 with a command, but got 2: it starts its processes itself. Give it "
                         "--gpus-per-worker N or --cpus-per-worker N, and {nproc} in the command."),
        ({"confirm": 4}, f"--confirm must be 0 if the command takes no seed, but got 4. {SEED_REMEDY}."),
        ({"search": {"learning-rat": "1..2"}},
         "--search learning-rat must be an option of train.py, but it has none of that name. Did you mean "
         "learning-rate?"),
        ({"search": {"--depth": "1..2"}}, "--search --depth must be a parameter's name, like lr or model.depth. Rename "
                                          "it."),
        ({"folder": "/gone"}, "the command must run in the folder that it was given in, but there is no /gone."),
    ],
)  # fmt: skip
def test_option_that_a_command_cannot_follow_is_refused(make_plan, options, problem):
    assert problems_of(make_plan, **options) == [problem]


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["train.py", "--a", "b c"], "Use -- python train.py --a 'b c'"),
        (["python9.9", "train.py"], f"Use {sys.executable}."),
        (["no-such-program"], "Name one that is installed, or give its path."),
    ],
)
def test_missing_program_is_refused(make_plan, words, remedy):
    config = SearchConfig(command=words, objective="loss:min", search={"lr": "1..2"})
    expected = f"the command must begin with a program, but there is no {words[0]}. {remedy}"
    assert problems_of(lambda: plan(resolve_config(config))) == [expected]


def test_misspelt_metric_is_refused_before_the_search(make_plan):
    read = ["loss=loss ([0-9.]+)", "val_loss=val ([0-9.]+)"]
    [problem] = problems_of(lambda: make_plan(objective="los:min", metric=read))
    assert problem.startswith("--objective los must be a metric of the command, but --metric names loss. Use loss.")
    assert make_plan(objective="eval_accuracy:max", metric=read), "it may come from the Trainer"


@pytest.mark.parametrize("words", [["trian.py"], ["-u", "trian.py", "--lr", "{lr}"]])
def test_missing_script_is_refused_by_its_own_path(make_plan, tmp_path, words):
    config = SearchConfig(command=[sys.executable, *words], objective="loss:min", search={"lr": "1..2"})
    expected = f"the command must name a script, but there is no {tmp_path / 'trian.py'}. Did you mean 'train.py'?"
    assert problems_of(lambda: plan(resolve_config(config))) == [expected]


DEFAULTS = """
import argparse
parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--lr", type=float, default=0.1, help="rate")
parser.add_argument("--optimizer", default="adam", help="kind")
parser.add_argument("--warmup", default=None, type=int, help="epochs")
parser.add_argument("--seed", type=int, help="default: none")
parser.add_argument("--fp16", action="store_true", help="precision")
parser.add_argument("--width", type=int, default=8)
parser.add_argument("--depth", type=int, default=len("abc"))
parser.parse_args()
"""
SPACE = {"lr": "1e-4..1", "optimizer": "sgd,adam", "warmup": "null,5", "fp16": "true,false"}


def test_defaults_of_the_program_are_tried_first(make_plan, tmp_path, capsys):
    (tmp_path / "train.py").write_text(DEFAULTS)
    planned = make_plan("--seed={seed}", search=SPACE)
    point = {"lr": 0.1, "optimizer": "adam", "warmup": None, "fp16": False}
    assert planned.first == (point,)
    assert planned.confirmation.defaults == {**point, "seed": 0}
    print_plan(planned)
    assert "# tried first: lr=0.1, optimizer=adam, warmup=None, fp16=False\n" in capsys.readouterr().out


@pytest.mark.parametrize(("search", "is_known"), [({"lr": "0.1..1"}, True), ({"depth": "1..16"}, False)])
def test_scheduler_knows_whether_the_program_has_defaults(make_plan, tmp_path, search, is_known):
    (tmp_path / "train.py").write_text(DEFAULTS)
    planned = make_plan("{checkpoint_dir}", search=search, set={"epochs": "9"})
    assert planned.config.scheduler == "hyperband"
    assert planned.schedule.starts_with_defaults == is_known


@pytest.mark.parametrize(
    ("search", "reason"),
    [
        ({"lr": "1..2", "optimizer": "sgd,adam"}, "lr is 0.1, which is none of the searched values"),
        ({"lr": "0.1..1", "depth": "1..16"}, "the program's own value of depth is not known"),
        ({"lr": "0.1..1", "optimizer": "1..2"}, "optimizer is adam, which is none of the searched values"),
    ],
)
def test_search_says_why_it_begins_without_defaults(make_plan, tmp_path, search, reason):
    (tmp_path / "train.py").write_text(DEFAULTS)
    planned = make_plan(search=search)
    assert planned.first == ()
    assert planned.notes[-1] == f"the defaults are neither tried nor compared: {reason}"


@pytest.mark.parametrize(
    ("words", "first", "kept"),
    [
        (["--lr", "0.3", "--width", "8", "--seed=1"], {"lr": 0.3, "width": 8}, ["--seed=1"]),
        (["--fp16", "--lr=0.3", "--width", "8"], {"lr": 0.3, "width": 8, "fp16": True}, []),
    ],
)
def test_value_in_the_command_of_a_searched_option_is_its_default(make_plan, tmp_path, words, first, kept):
    (tmp_path / "train.py").write_text(DEFAULTS)
    spaces = {"lr": "0.1..1", "width": "1..16", "fp16": "true,false"}
    planned = make_plan(*words, search={name: spaces[name] for name in first})
    assert planned.first == (first,)
    assert planned.command.words == (sys.executable, "train.py", *kept), "the program gets one value"


def test_search_keeps_its_defaults_and_flags(make_plan, tmp_path):
    planned = make_plan(**{"try": [{"learning-rate": "0.01"}]})
    assert planned.first == ({"learning-rate": 0.01},)
    planned.config.local_path.mkdir(parents=True)
    opened = create_search(planned)
    try:
        assert opened.study.metadata["defaults"] == {}, "a point of the user is none"
        assert opened.study.metadata["flags"]["learning-rate"]["on"] == ["--learning-rate", "{value}"]
    finally:
        opened.store.close()


def test_value_of_a_file_is_tried_first(make_plan, tmp_path):
    (tmp_path / "config.yaml").write_text("lr: 0.5\nname: 'adam'\n")
    search = {"lr": "0.1..1", "name": "adam,sgd"}
    assert make_plan(search=search, to=["config.yaml:lr=lr", "config.yaml:name=name"]).first == (
        {"lr": 0.5, "name": "adam"},
    )


def test_seed_of_the_trial_may_go_to_a_file(make_plan, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("lr: 0.5\nseed: 3\n")
    (tmp_path / "train.py").write_text("SEED = 1\n" + SCRIPT)
    given = {"to": ["config.yaml:seed=seed"], "patch": ["train.py:SEED=seed"]}
    planned = make_plan("--seed={seed}", **given)
    assert planned.confirmation is not None
    assert planned.command.defaults == {}, "the seed is no parameter"
    launched = fill(planned.command, {"learning-rate": 0.1, "seed": 7}, {"seed": "7", "trial_dir": "0"})
    assert launched.files["config.yaml"] == "lr: 0.5\nseed: 7\n"
    assert launched.files["train.py"].startswith("SEED = 7\n")
    print_plan(planned)
    assert "# a trial, for example: config.yaml: seed is 0\n" in capsys.readouterr().out
    (tmp_path / "config.yaml").write_text("seed: 3\n")
    with pytest.raises(UsageError, match=r"must take seed or a parameter of --search or --set, but sed is none. Did"):
        make_plan(to=["config.yaml:seed=sed"])


def test_plan_has_only_lines_that_say_something(make_plan, capsys):
    print_plan(make_plan())
    printed = capsys.readouterr().out
    assert "# tried first" not in printed
    assert "# fixed" not in printed
    print_plan(make_plan("--seed={seed}"))
    assert "# fixed: seed 0\n" in capsys.readouterr().out


def test_plan_has_the_first_command_line_and_what_it_changes_in_files(make_plan, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("lr: 0.5\n")
    search = {"lr": "0.1..1", "depth": "1..9", "momentum": "0.0..1.0"}
    options = {"search": search, "to": ["config.yaml:lr=lr"], "try": [{"momentum": 0.9}], "name": "one"}
    print_plan(make_plan("--depth={depth}", "{momentum}", "{trial_dir}/out", "{port}", **options))
    folder = tmp_path / "runs" / "one" / "trials" / "0"
    printed = capsys.readouterr().out
    assert f"# a trial, for example: {sys.executable} train.py --depth=5 0.9 {folder}/out '{{port}}'\n" in printed
    assert "# a trial, for example: config.yaml: lr is 0.55\n" in printed


def test_plan_has_the_path_of_the_copy_of_a_file_that_the_command_names(make_plan, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("lr: 0.5\n")
    print_plan(make_plan("{config.yaml}", search={"lr": "0.1..1"}, to=["config.yaml:lr=lr"], name="one"))
    copied = tmp_path / "runs" / "one" / "trials" / "0" / "config.yaml"
    assert f"# trial 0: {sys.executable} train.py {copied}\n" in capsys.readouterr().out


def test_dry_run_prints_what_follows_from_the_command(make_plan, tmp_path, capsys):
    words = [
        "--search",
        "learning-rate=0.0..1.",
        "--objective",
        "loss:min",
        "--dry-run",
        "--",
        sys.executable,
        "train.py",
    ]
    main.main(words, standalone_mode=False)
    printed = capsys.readouterr().out
    assert f"command:\n- {sys.executable}\n- train.py\n" in printed
    assert f"folder: {tmp_path}\n" in printed
    assert f"# a trial, for example: {sys.executable} train.py --learning-rate 0.5\n" in printed
    assert "# a trial ends when its program ends; ends a trial below the median" in printed
    assert "# no confirming runs: the command takes no seed." in printed


def test_dry_run_shows_what_a_script_asks_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asking.py").write_text("import searchlight\nlr = searchlight.params().get('lr', 0.2)\n")
    words = ["--search", "lr=0.0..1.0", "--set", "epochs=3", "--objective", "loss:min", "--dry-run"]
    main.main([*words, "--", sys.executable, "asking.py", "{seed}"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert f"# trial 0: {sys.executable} asking.py 0\n" in printed
    assert "# trial 0: searchlight.params() has lr=0.2\n" in printed


def test_dry_run_shows_what_a_function_is_called_with(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit('imported')\ndef evaluate(lr=0.2, width=8): ...\n")
    words = ["train.py:evaluate", "--search", "lr=0.0..1.0", "--objective", "loss:min", "--dry-run"]
    main.main(words, standalone_mode=False)
    printed = capsys.readouterr().out
    assert "# tried first: lr=0.2\n" in printed
    assert "# trial 0: train.py:evaluate has lr=0.2\n" in printed
    assert "takes no seed. Let train.py:evaluate take an argument seed\n" in printed
