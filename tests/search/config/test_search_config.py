import pytest
import yaml
from click.testing import CliRunner

from searchlight.search.config import SearchConfig, load_config
from searchlight.search.config.loading import resolve_config, to_yaml
from searchlight.search.config.search_config import OPTIONS
from searchlight.search.errors import UsageError
from searchlight.search.folder.locations import check_location
from searchlight.search.run import main
from tests.search.refusals import problems_of

URL = "must be like sqlite:///path.db or postgresql://host/database"
ONE_RUN = "it is one run with fixed parameters."
GRACE = "--grace-period must come with --scheduler asha, asha-stop, hyperband, median"
# Nine lines, each with the one before nine times.
BOMB = "a: &a [1]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.fixture
def from_file(tmp_path):
    """Loads a search.yaml of that text."""

    def load(text, **given):
        (tmp_path / "search.yaml").write_text(text)
        return load_config(given, tmp_path / "search.yaml")

    return load


def test_defaults_are_a_small_search_in_the_runs_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config({"task": "arc"})
    assert (config.trials, config.scheduler, config.sampler) == (16, "hyperband", "tpe")
    assert (config.storage, config.experiment) == (tmp_path / "runs", "arc")
    assert config.name.startswith("arc-")
    assert load_config({"task": "/home/me/my_task.py"}).name.startswith("my_task-"), "load_task_source asks for a class"


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("45s", 45), ("30m", 1800), ("1.5h", 5400), ("2d", 172800)])
def test_time_budget_with_a_unit_is_in_seconds(text, seconds):
    assert load_config({"task": "arc", "time_budget": text}).time_budget == seconds


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ({"trials": "0", "workers": "x"}, ["--trials must be greater than or equal to 1, but got '0'.",
                                           "--workers must be a valid integer, but got 'x'."]),
        ({"trials": "1" * 40}, [f"--trials must be less than or equal to 1000000000, but got '{'1' * 40}'."]),
        ({"cpus_per_worker": "1e-30"}, ["--cpus-per-worker must be greater than or equal to 0.0001, but got '1e-30'."]),
        ({"gpus_per_worker": "1e-30"}, ["--gpus-per-worker must be 0 or at least 0.0001, but got 1e-30."]),
        ({"name": ""}, ["--name must be letters, digits, '.', '_' or '-', but got ''. "
                        "Leave it out for a name with date and time."]),
        ({"scheduler": "ash"},
         ["--scheduler must be 'asha', 'asha-stop', 'hyperband', 'median', 'pbt' or 'none', but got 'ash'."]),
        ({"time_budget": "inf"}, ["--time-budget must be like 90s, 30m or 2h, but got 'inf'."]),
        ({"time_budget": "2x"}, ["--time-budget must be like 90s, 30m or 2h, but got '2x'."]),
        ({"gpu_hours": "0"}, ["--gpu-hours must be greater than 0, but got '0'."]),
        ({"stop_when": "score=1"},
         ["--stop-when must be like val/score>=0.4, with one of >= > <= <, but got 'score=1'."]),
        ({"try": ["lr"]}, ["--try must be like name=value,name=value, but got 'lr'."]),
        ({"try": ["lr=1", "a=1,,b=2"]}, ["--try must be like name=value,name=value, but got 'a=1,,b=2'."]),
        ({"gpus_per_worker": "-1"}, ["--gpus-per-worker must be greater than or equal to 0, but got '-1'."]),
        ({"storage": "abfs://bucket@account.dfs.core.windows.net/searches"},
         ["--study must be a database with --storage abfs://, but got none: a file there is empty while it is written, "
          "and a driver that dies then would lose it. Use postgresql://host/database."]),
        ({"study": "studies.db"}, [f"--study {URL}, but got 'studies.db'."]),
        ({"study": "mysql://host/database"}, [f"--study {URL}, but got 'mysql://host/database'."]),
        ({"study": "sqlite://"}, ["--study must name a file, as sqlite:///path.db does, but got 'sqlite://'."]),
        ({"study": "sqlite:///:memory:"},
         ["--study must name a file, as sqlite:///path.db does, but got 'sqlite:///:memory:'."]),
        ({"once": True, "search": {"policy_lr": "1e-3..1e-2"}},
         [f"--once must come without --trials and --search: {ONE_RUN}"]),
        ({"once": True, "try": ["lr=1"]}, [f"--once must come without --try: {ONE_RUN}"]),
        ({"once": True, "warm_start": ["old"]}, [f"--once must come without --warm-start: {ONE_RUN}"]),
        ({"once": True, "patience": "3"}, [f"--once must come without --patience: {ONE_RUN}"]),
        ({"once": True, "grace_period": "2"}, [f"{GRACE}, but got none."]),
        ({"once": True, "confirm": "6"},
         ["--confirm must be 0 with --once, but got 6: there is one config. Leave it out."]),
        ({"trials": "1", "confirm": "6"},
         ["--trials must be at least 2 with --confirm 6, but got 1: it compares configs."]),
        ({"confirm": "3"}, ["--confirm must be 0 or at least 4, but got 3: a finalist and the defaults need two seeds "
                            "each."]),
        ({"scheduler": "pbt", "confirm": "6"},
         ["--confirm must be 0 with --scheduler pbt, but got 6: a member's parameters change while it trains, and no "
          "config trains the like again. Leave it out."]),
        ({"population": "4"}, ["--population must come with --scheduler pbt, but got hyperband."]),
        ({"scheduler": "median", "exploit_every": "2"},
         ["--exploit-every must come with --scheduler pbt, but got median."]),
        ({"scheduler": "none", "reduction_factor": "4", "grace_period": "2"},
         ["--reduction-factor must come with --scheduler asha, asha-stop, hyperband, but got none.",
          f"{GRACE}, but got none."]),
        ({"scheduler": "pbt", "trials": "16", "population": "17"},
         ["--population must be at most --trials, 16, but got 17. Trials beyond it are the copies."]),
        ({"scheduler": "pbt", "population": "1"}, ["--population must be greater than or equal to 2, but got '1'."]),
        ({"scheduler": "pbt", "trials": "1"}, ["--trials must be at least 2 with --scheduler pbt, but got 1."]),
        ({"fidelity": "gpu-seconds"}, ["--max-fidelity must come with --fidelity gpu-seconds, but got none. "
                                       "Set a trial's largest budget: 600 or 10m."]),
        ({"fidelity": "samples", "scheduler": "none"},
         ["--max-fidelity must come with --fidelity samples, but got none. Set a trial's largest budget: 100000."]),
        ({"fidelity": "samples", "max_fidelity": "1e6", "scheduler": "pbt"},
         ["--fidelity must be epochs with --scheduler pbt, but got samples."]),
        ({"fidelity": "gpu-seconds", "max_fidelity": "10m", "scheduler": "median"},
         ["--fidelity must be epochs with --scheduler median, but got gpu-seconds."]),
        ({"fidelity": "gpu-seconds", "max_fidelity": "1m", "grace_period": "2m"},
         ["--grace-period must be at most --max-fidelity, 60, but got 120."]),
        ({"fidelity": "hours"}, ["--fidelity must be 'epochs', 'samples' or 'gpu-seconds', but got 'hours'."]),
        ({"max_fidelity": "4.5", "grace_period": "1.5"},
         ["--max-fidelity must be a whole number of epochs, but got 4.5.",
          "--grace-period must be a whole number of epochs, but got 1.5."]),
    ],
)  # fmt: skip
def test_wrong_options_are_all_refused_by_their_flags(given, messages):
    assert sorted(problems_of(load_config, {"task": "arc", **given})) == sorted(messages)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:gehe@im/geheim@host/db",
        "postgresql://host/db?password=geheim",
        "postgresql://host/db?sslpassword=geheim",
        "mysql://me:geheim@host/db",
        "postgres//me:geheim@host/db",
        "postgresql://me:geheim@host:port/db",
    ],
)
def test_password_in_the_study_url_is_refused_and_not_shown(url):
    (problem,) = problems_of(load_config, {"task": "arc", "study": url})
    assert problem.startswith("--study must be ")
    assert "geheim" not in problem


def test_study_url_is_kept_and_its_path_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url in ("postgresql://me@host:5432/db?sslmode=require", "postgresql:///db?host=/run/socket"):
        assert load_config({"task": "arc", "study": url}).study == url
    assert load_config({"task": "arc", "study": "sqlite:///a/b c.db"}).study == f"sqlite:///{tmp_path}/a/b c.db"


def test_choice_named_no_in_a_file_is_text(from_file):
    config = from_file("task: arc\nsearch: {mp: [no, bf16]}\nset: {a: off, b: true}\n")
    assert (config.search, config.set) == ({"mp": "no,bf16"}, {"a": "off", "b": True})


def test_flags_override_the_file_parameter_by_parameter(from_file):
    text = yaml.safe_dump({"task": "arc", "trials": 7, "seed": 3, "set": {"a": 1, "b": 2}})
    config = from_file(text, trials="9", set={"b": "5"})
    assert (config.trials, config.seed, config.set) == (9, 3, {"a": 1, "b": "5"})


@pytest.mark.parametrize(
    ("content", "start"),
    [
        ("task: arc\ntrails: 3\n",
         "{file}: trails must be an option of a search, but there is none of that name. Did you mean 'trials'?"),
        ("- a\n- b\n", "--config must hold options by name"),
        ("a: [1\n", "--config must be a YAML file"),
        ("task: arc\nset: foo\n", "{file}: set must hold parameters by name, but got 'foo'."),
        ("task: arc\n1: 2\n", "{file}: 1 must be an option of a search"),
        ("task: " + "[" * 5000 + "]" * 5000, "--config must be a YAML file of options, but {file} is nested too deep."),
        ("set: &a {x: *a}\n", "--config must be a YAML file of options, but {file} is nested too deep."),
        (BOMB, "--config must hold at most 1048576 characters or items, but {file} holds more."),
        ("#" * 2**21, "--config must hold at most 1048576 characters or items, but {file} holds more."),
    ],
    ids=["unknown", "list", "broken", "text", "number", "deep", "cycle", "aliases", "long"],
)  # fmt: skip
def test_malformed_file_is_refused(from_file, tmp_path, content, start):
    assert problems_of(from_file, content)[0].startswith(start.format(file=tmp_path / "search.yaml"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[{lr: 0.1, precision: bf16}, 'lr=0.2']", [{"lr": 0.1, "precision": "bf16"}, {"lr": "0.2"}]),
        ("['lr=0.1, precision=bf16', {lr: 0.2}]", [{"lr": "0.1", "precision": "bf16"}, {"lr": 0.2}]),
        ("{lr: 0.1}", [{"lr": 0.1}]),
        ("'lr=0.1'", [{"lr": "0.1"}]),
    ],
)
def test_points_of_the_file_precede_those_of_flags(from_file, content, expected):
    assert from_file(f"task: arc\ntry: {content}\n", **{"try": ["lr=0.3"]}).try_ == [*expected, {"lr": "0.3"}]


def test_file_may_list_choices(from_file):
    assert from_file("task: arc\nsearch: {width: [16, 32]}\n").search == {"width": "16,32"}


@pytest.mark.parametrize(
    ("retired", "current"),
    [
        ("memory_growth: 2.0\nlog_model: false", ""),
        ("cold: true", "recycle_after: 1"),
        ("cold: true\nrecycle_after: 2", "recycle_after: 2"),
        ("cold: false", ""),
        ("objective: loss\nmode: min", "objective: loss:min"),
        ("objective: [loss, time:max]\nmode: min", "objective: [loss:min, time:max]"),
        ("objective: loss:min\nmode: min", "objective: loss:min"),
    ],
)
def test_retired_keys_of_a_file_become_current_ones(from_file, retired, current):
    assert from_file(f"task: arc\nname: one\n{retired}") == from_file(f"task: arc\nname: one\n{current}")


def test_retired_keys_without_a_current_one_are_refused(tmp_path):
    file = tmp_path / "old.yaml"
    file.write_text("task: arc\nprice_per_hour: 2.5\nlog_model: true\nmode: min\n")
    assert problems_of(load_config, {}, file) == [
        f"{file}: price_per_hour is gone. Use the hours of --preflight, times the price.",
        f"{file}: log_model is gone. Use --register MODEL, or log the model after the search: report NAME --log-model.",
        f"{file}: mode is gone. Use --objective METRIC:min or METRIC:max.",
    ]
    with pytest.raises(ValueError, match=r"mode is gone\. Use --objective METRIC:min or METRIC:max"):
        SearchConfig(task="arc", mode="max")


def test_warm_start_takes_names_folders_and_experiments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sources = ["old", "there/old", "/else/where", "mlflow:theirs"]
    config = load_config({"task": "some/file.py:Task", "storage": "runs", "warm_start": sources})
    assert config.warm_start == [
        str(tmp_path / "runs" / "old"),
        str(tmp_path / "there" / "old"),
        "/else/where",
        "mlflow:theirs",
    ]
    assert config.task == f"{tmp_path}/some/file.py:Task"
    assert resolve_config(config) == config


def test_every_key_but_the_tracking_uri_is_an_option():
    keys = {field.alias or name for name, field in SearchConfig.model_fields.items()}
    only_flags = {"more", "config", "resume", "dry_run", "try_first", "preflight", "list_", "as_json"}
    assert {parameter.name for parameter in main.params} - only_flags == keys - {
        "tracking_uri",
        "command",
        "folder",
        "defaults",
    }


def test_each_option_reaches_the_config_by_its_key():
    options = [option for option in OPTIONS if option.is_on_command_line]
    words = [word for option in options for word in ([option.name, "a=b"] if option.metavar else [option.name])]
    given = main.make_context("run.py", words).params
    repeatable = {"constraint", "metric", "objective", "patch", "resources", "search", "set", "to", "trust", "try"}
    repeatable |= {"believe", "warm_start", "sizes", "target", "exponent"}
    for option in options:
        text = "a=b" if option.metavar else True
        assert given[option.key] == ((text,) if option.key in repeatable else text)


def test_beliefs_of_the_command_line_join_those_of_a_file(tmp_path):
    (tmp_path / "search.yaml").write_text("believe: {policy_lr: [0.001, 0.0001], precision: bf16}\n")
    words = ["arc", "--config", str(tmp_path / "search.yaml"), "--believe", "precision=fp32,bf16", "--dry-run"]
    shown = CliRunner().invoke(main, words)
    assert shown.exit_code == 0, shown.stderr
    assert yaml.safe_load(shown.stdout)["believe"] == {"policy_lr": [0.001, 0.0001], "precision": "fp32,bf16"}


def test_trust_of_the_command_line_joins_that_of_a_file(tmp_path):
    (tmp_path / "search.yaml").write_text("sampler: mixture\ntrust: {policy_lr: low, curriculum: low}\n")
    words = ["arc", "--config", str(tmp_path / "search.yaml"), "--trust", "policy_lr=high", "--dry-run"]
    shown = CliRunner().invoke(main, words)
    assert shown.exit_code == 0, shown.stderr
    assert yaml.safe_load(shown.stdout)["trust"] == {"policy_lr": "high", "curriculum": "low"}
    for wrong, rule in (("high", "--trust must be like name=value, but got 'high'."), ("policy_lr=3", "'high'")):
        refused = CliRunner().invoke(main, ["arc", "--trust", wrong, "--dry-run"])
        assert refused.exit_code == 2
        assert rule in refused.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trails", "3"], "No such option: --trails (Possible options: --trials, --trust, --try-first)"),
        (["arc", "--trials"], "Option '--trials' requires an argument."),
        (["arc", "--mode", "max"], "--mode is gone. Use --objective METRIC:min or METRIC:max."),
        (["--trials", "3", "--"], "a command must follow --, e.g. -- python train.py --seed {seed}"),
        (["--trials", "3", "python", "train.py"], "a command must follow --, but got none. Use -- python train.py"),
        (["--quiet", "python3", "-m", "train"], "a command must follow --, but got none. Use -- python3 -m train"),
        (
            ["python", "train.py", "--seed", "{seed}"],
            "a command must follow --, but got none. Use -- python train.py --seed '{seed}'",
        ),
        (["arc", "--quiet=1"], "Option '--quiet' does not take a value."),
    ],
)
def test_command_line_that_cannot_be_parsed_is_refused(words, message):
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (2, f"Error: {message}")


def test_help_groups_options_within_80_columns():
    text = CliRunner().invoke(main, ["--help"]).stdout
    groups = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert groups == [
        "Start:", "Command:", "Budget:", "Resources:", "Scheduler:", "Sampler:", "Search space and objective:",
        "Sizes:", "Storage and tracking:", "Output:", "Advanced:", "Options:",
    ]  # fmt: skip
    assert all(f"  {option.name}" in text for option in OPTIONS if option.is_on_command_line)
    assert max(map(len, text.splitlines())) <= 80


def test_each_help_text_is_a_sentence_with_its_default():
    for option in OPTIONS:
        assert option.help[0].isupper()
        assert option.help.endswith(".")
        required = option.key in ("task", "register") or option.default is False or "repeated" in option.help
        assert required or "Default: " in option.help, option.key


def test_once_sets_the_options_that_it_stands_for():
    once = load_config({"task": "arc", "once": True})
    assert (once.trials, once.scheduler) == (1, "none")
    assert load_config({"task": "arc", "scheduler": "pbt", "reduction_factor": "3"}).scheduler == "pbt"


def test_dumped_yaml_starts_the_same_search_under_a_new_name(tmp_path, from_file):
    given = {"trials": "5", "set": {"x": "1"}, "try": ["lr=1e-3,precision=bf16"], "warm_start": ["old"]}
    given |= {"gpu_hours": "2", "stop_when": "val/score >= 0.40", "patience": "7", "time_budget": "2h"}
    given |= {"register": "my model"}
    config = load_config({"task": "arc", "name": "one", "storage": str(tmp_path), **given})
    again = from_file(to_yaml(config))
    assert again.name != "one"
    assert again.model_copy(update={"name": "one"}) == config


@pytest.mark.parametrize(
    ("given", "amounts"),
    [
        ({"fidelity": "gpu-seconds", "max_fidelity": "10m", "grace_period": "30s"}, (600, 30)),
        ({"fidelity": "gpu-seconds", "max_fidelity": 1.5}, (1.5, None)),
        ({"fidelity": "samples", "max_fidelity": "1e6", "grace_period": "10000"}, (1e6, 10_000)),
        ({"max_fidelity": "27", "grace_period": "3"}, (27, 3)),
    ],
)
def test_amounts_are_in_fidelity_units_and_survive_yaml(from_file, given, amounts):
    config = load_config({"task": "arc", **given})
    assert (config.max_fidelity, config.grace_period) == amounts
    again = from_file(to_yaml(config))
    assert (again.fidelity, again.max_fidelity, again.grace_period) == (config.fidelity, *amounts)


@pytest.mark.parametrize("amount", ["0", "-3", "many", "10m", "nan"])
def test_samples_must_be_a_number_above_zero(amount):
    (problem,) = problems_of(load_config, {"task": "arc", "fidelity": "samples", "max_fidelity": amount})
    assert problem.startswith("--max-fidelity must be ")
    assert problem.endswith(f"but got '{amount}'.")


@pytest.mark.parametrize(
    ("given", "problems"),
    [
        ({"trials": 0, "scheduler": "ash"}, [
            "--trials must be greater than or equal to 1, but got 0.",
            "--scheduler must be 'asha', 'asha-stop', 'hyperband', 'median', 'pbt' or 'none', but got 'ash'.",
        ]),
        ({"try_": ["lr"]}, ["--try must be like name=value,name=value, but got 'lr'."]),
        ({"trails": 3}, ["trails must be an option of a search, but there is none of that name. "
                         "Did you mean 'trials'?"]),
        ({"mode": "min"}, ["--mode is gone. Use --objective METRIC:min or METRIC:max."]),
    ],
)  # fmt: skip
def test_wrong_argument_in_python_is_refused_as_the_option_is(given, problems):
    with pytest.raises(UsageError) as caught:
        SearchConfig(task="arc", **given)
    assert sorted(caught.value.problems) == sorted(problems)


def test_task_must_be_given_in_python():
    with pytest.raises(UsageError, match=r"^task must be given\.$"):
        SearchConfig()


def test_name_that_exists_or_is_no_folder_name_is_refused(tmp_path):
    (tmp_path / "old").mkdir()
    with pytest.raises(UsageError, match=r"--name must be new, but old exists in .*\. Choose another\."):
        check_location(tmp_path, "old")
    for name in ("a/b", "..", "-x", "a b"):
        with pytest.raises(UsageError, match=r"--name must be letters, digits"):
            check_location(tmp_path, name)


def test_storage_below_a_file_is_refused_before_a_write(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--storage must be a folder that can be written to, but got .*/file/runs"):
        check_location(tmp_path / "file" / "runs", "one")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
