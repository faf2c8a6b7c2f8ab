from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from search.config import SearchConfig, load_config
from search.config.loading import resolve_config, to_yaml
from search.config.search_config import OPTIONS
from search.errors import UsageError
from search.run import main
from search.storage.locations import check_location


def refused(given, file=None):
    with pytest.raises(UsageError) as caught:
        load_config(given, file)
    return list(caught.value.problems)


def test_defaults_are_a_small_search_with_halving_in_the_runs_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config({"task": "arc"})
    assert (config.trials, config.scheduler, config.sampler) == (16, "asha", "tpe")
    assert config.storage == tmp_path / "runs"
    assert config.experiment == "arc"
    assert config.name.startswith("arc-")


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("45s", 45), ("30m", 1800), ("2h", 7200), ("1.5h", 5400)])
def test_a_time_budget_may_have_a_unit(text, seconds):
    assert load_config({"task": "arc", "time_budget": text}).time_budget == seconds


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"trials": "0"}, "--trials must be greater than or equal to 1, but got '0'."),
        ({"trials": "x"}, "--trials must be a valid integer, but got 'x'."),
        (
            {"scheduler": "ash"},
            "--scheduler must be 'asha', 'asha-stop', 'hyperband', 'median', 'pbt' or 'none', but got 'ash'.",
        ),
        ({"time_budget": "inf"}, "--time-budget must be like 90s, 30m or 2h, but got 'inf'."),
        ({"time_budget": "2x"}, "--time-budget must be like 90s, 30m or 2h, but got '2x'."),
        ({"gpu_hours": "0"}, "--gpu-hours must be greater than 0, but got '0'."),
        ({"patience": "0"}, "--patience must be greater than or equal to 1, but got '0'."),
        (
            {"stop_when": "score=1"},
            "--stop-when must be like val/score>=0.4, with one of >= > <= <, but got 'score=1'.",
        ),
        ({"try": ["lr"]}, "--try must be like name=value,name=value, but got 'lr'."),
        ({"try": ["lr=1", "a=1,,b=2"]}, "--try must be like name=value,name=value, but got 'a=1,,b=2'."),
        ({"gpus_per_worker": "-1"}, "--gpus-per-worker must be greater than or equal to 0, but got '-1'."),
        (
            {"storage": "abfs://bucket@account.dfs.core.windows.net/searches"},
            "--study must be a database with --storage abfs://, but got none: a file there is empty while it is "
            "written, and a driver that dies then would lose it. Say postgresql://host/database.",
        ),
        (
            {"study": "studies.db"},
            "--study must be like sqlite:///path.db or postgresql://host/database, but got 'studies.db'.",
        ),
        (
            {"study": "mysql://host/database"},
            "--study must be like sqlite:///path.db or postgresql://host/database, but got 'mysql://host/database'.",
        ),
        ({"study": "sqlite://"}, "--study must name a file, as sqlite:///path.db does, but got 'sqlite://'."),
        ({"study": "sqlite:///:memory:"}, "--study must name a file, as sqlite:///path.db does, "
                                          "but got 'sqlite:///:memory:'."),
    ],
)  # fmt: skip
def test_a_wrong_option_is_told_as_the_flag_that_it_is(given, message):
    assert refused({"task": "arc", **given}) == [message]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:geheim@host/db",
        "postgresql://me:gehe@im/geheim@host/db",
        "postgresql://host/db?password=geheim",
        "postgresql://host/db?sslpassword=geheim",
        "mysql://me:geheim@host/db",
        "postgres//me:geheim@host/db",
        "postgresql://me:geheim@host:port/db",
    ],
)
def test_a_password_in_the_url_of_the_study_is_refused_and_not_told(url):
    (problem,) = refused({"task": "arc", "study": url})
    assert problem.startswith("--study must be ")
    assert "geheim" not in problem


@pytest.mark.parametrize("url", ["postgresql://me@host:5432/db?sslmode=require", "postgresql:///db?host=/run/socket"])
def test_the_url_of_a_server_is_kept_as_it_is(url):
    assert load_config({"task": "arc", "study": url}).study == url


def test_the_path_of_a_study_comes_out_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config({"task": "arc", "study": "sqlite:///a/b c.db"}).study == f"sqlite:///{tmp_path}/a/b c.db"


def test_all_wrong_options_are_told_at_once():
    assert len(refused({"task": "arc", "trials": "0", "workers": "x"})) == 2


def test_flags_go_before_the_file_parameter_by_parameter(tmp_path):
    file = tmp_path / "search.yaml"
    file.write_text(yaml.safe_dump({"task": "arc", "trials": 7, "seed": 3, "set": {"a": 1, "b": 2}}))
    config = load_config({"trials": "9", "set": {"b": "5"}}, file)
    assert (config.trials, config.seed, config.set) == (9, 3, {"a": 1, "b": "5"})


def test_an_unknown_key_of_the_file_is_told_with_the_nearest(tmp_path):
    file = tmp_path / "search.yaml"
    file.write_text("task: arc\ntrails: 3\n")
    assert refused({}, file) == [
        f"{file}: trails must be an option of a search, but there is none of that name. Did you mean 'trials'?"
    ]


@pytest.mark.parametrize(
    ("content", "start"),
    [
        ("- a\n- b\n", "--config must hold options by name"),
        ("a: [1\n", "--config must be a YAML file"),
        ("task: arc\nset: foo\n", "{file}: set must hold parameters by name, but got 'foo'."),
        ("task: arc\n1: 2\n", "{file}: 1 must be an option of a search"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path, content, start):
    file = tmp_path / "search.yaml"
    file.write_text(content)
    assert refused({}, file)[0].startswith(start.format(file=file))


def test_choices_may_be_a_list_in_the_file(tmp_path):
    file = tmp_path / "search.yaml"
    file.write_text("task: arc\nsearch: {width: [16, 32]}\n")
    assert load_config({}, file).search == {"width": "16,32"}


@pytest.mark.parametrize(
    "content",
    ["[{lr: 0.1, precision: bf16}, 'lr=0.2']", "['lr=0.1, precision=bf16', {lr: 0.2}]"],
)
def test_points_to_try_may_be_mappings_or_texts_and_flags_add_to_those_of_the_file(tmp_path, content):
    file = tmp_path / "search.yaml"
    file.write_text(f"task: arc\ntry: {content}\n")
    found = load_config({"try": ["lr=0.3"]}, file).try_
    assert [{name: str(value) for name, value in point.items()} for point in found] == [
        {"lr": "0.1", "precision": "bf16"},
        {"lr": "0.2"},
        {"lr": "0.3"},
    ]


@pytest.mark.parametrize(("content", "expected"), [("{lr: 0.1}", [{"lr": 0.1}]), ("'lr=0.1'", [{"lr": "0.1"}])])
def test_a_single_point_needs_no_list(tmp_path, content, expected):
    file = tmp_path / "search.yaml"
    file.write_text(f"task: arc\ntry: {content}\n")
    assert load_config({}, file).try_ == expected


def test_an_earlier_search_is_named_by_its_name_by_its_folder_or_as_an_experiment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sources = ["old", "there/old", "/else/where", "mlflow:theirs"]
    config = load_config({"task": "arc", "storage": "runs", "warm_start": sources})
    assert config.warm_start == [
        str(tmp_path / "runs" / "old"),
        str(tmp_path / "there" / "old"),
        "/else/where",
        "mlflow:theirs",
    ]
    assert resolve_config(config) == config


def test_every_key_but_the_tracking_uri_is_an_option_of_the_command_line():
    keys = {field.alias or name for name, field in SearchConfig.model_fields.items()}
    only_flags = {"more", "config", "resume", "dry_run", "list_", "as_json"}
    assert {parameter.name for parameter in main.params} - only_flags == keys - {"tracking_uri"}


def test_each_option_reaches_the_config_by_its_key():
    options = [option for option in OPTIONS if option.is_on_command_line]
    words = [word for option in options for word in ([option.name, "a=b"] if option.metavar else [option.name])]
    given = main.make_context("run.py", words).params
    repeatable = {"objective", "resources", "search", "set", "try", "warm_start"}
    for option in options:
        text = "a=b" if option.metavar else True
        assert given[option.key] == ((text,) if option.key in repeatable else text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trails", "3"], "No such option: --trails (Possible options: --trials, --try)"),
        (["arc", "--trials"], "Option '--trials' requires an argument."),
        (["arc", "--quiet=1"], "Option '--quiet' does not take a value."),
    ],
)
def test_command_line_that_cannot_be_parsed_is_refused(words, message):
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (2, f"Error: {message}")


def test_help_lists_each_option_in_a_group_within_80_columns():
    text = CliRunner().invoke(main, ["--help"]).stdout
    groups = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert groups == [
        "Start:", "Budget:", "Resources:", "Scheduler:", "Sampler:", "Search space and objective:",
        "Storage and tracking:", "Output:", "Advanced:", "Options:",
    ]  # fmt: skip
    assert all(f"  {option.name}" in text for option in OPTIONS if option.is_on_command_line)
    assert max(map(len, text.splitlines())) <= 80


def test_each_help_text_is_a_sentence_with_its_default():
    for option in OPTIONS:
        assert option.help[0].isupper()
        assert option.help.endswith(".")
        required = option.key in ("task", "register") or option.default is False or "repeated" in option.help
        assert required or "Default: " in option.help, option.key


def test_search_yaml_of_an_older_search_loads_without_its_retired_key(tmp_path):
    file = tmp_path / "search.yaml"
    file.write_text("task: arc\ntrials: 7\nmemory_growth: 2.0\n")
    assert load_config({}, file).trials == 7


def test_cold_is_short_for_recycling_after_each_trial():
    assert load_config({"task": "arc", "cold": True}).recycle_after == 1
    assert load_config({"task": "arc", "cold": True, "recycle_after": "1"}).recycle_after == 1
    assert refused({"task": "arc", "cold": True, "recycle_after": "2"}) == [
        "--recycle-after must be 1 with --cold, but got 2. Leave one of them out."
    ]


def test_the_dumped_yaml_starts_the_same_search_under_a_new_name(tmp_path):
    given = {"trials": "5", "set": {"x": "1"}, "try": ["lr=1e-3,precision=bf16"], "warm_start": ["old"]}
    given |= {"gpu_hours": "2", "stop_when": "val/score >= 0.40", "patience": "7", "time_budget": "2h"}
    given |= {"register": "my model", "log_model": True}
    config = load_config({"task": "arc", "name": "one", "storage": str(tmp_path), **given})
    file = tmp_path / "search.yaml"
    file.write_text(to_yaml(config))
    again = load_config({}, file)
    assert again.name != "one"
    assert again.model_copy(update={"name": "one"}) == config


def test_completing_a_config_twice_changes_nothing():
    config = resolve_config(SearchConfig(task="some/file.py:Task", storage=Path("there")))
    assert config.task == f"{Path.cwd()}/some/file.py:Task"
    assert resolve_config(config) == config


def test_one_run_is_one_trial_that_is_never_stopped_early():
    config = load_config({"task": "arc", "once": True})
    assert (config.trials, config.scheduler) == (1, "none")


@pytest.mark.parametrize("given", [{"trials": "8"}, {"search": {"agent_lr": "1e-3..1e-2"}}])
def test_one_run_takes_no_option_of_a_search(given):
    assert refused({"task": "arc", "once": True, **given}) == [
        "--once must come without --trials and --search: it is one run with fixed parameters."
    ]


@pytest.mark.parametrize(
    ("given", "flag"),
    [({"try": ["lr=1"]}, "--try"), ({"warm_start": ["old"]}, "--warm-start"), ({"patience": "3"}, "--patience")],
)
def test_one_run_starts_from_no_point_and_waits_for_no_plateau(given, flag):
    assert refused({"task": "arc", "once": True, **given}) == [
        f"--once must come without {flag}: it is one run with fixed parameters."
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"population": "4"}, "--population must come with --scheduler pbt, but got asha."),
        (
            {"scheduler": "median", "exploit_every": "2"},
            "--exploit-every must come with --scheduler pbt, but got median.",
        ),
        (
            {"scheduler": "pbt", "grace_period": "2"},
            "--grace-period must come with --scheduler asha, asha-stop, hyperband, median, but got pbt.",
        ),
        (
            {"scheduler": "none", "reduction_factor": "4"},
            "--reduction-factor must come with --scheduler asha, asha-stop, hyperband, but got none.",
        ),
        (
            {"scheduler": "pbt", "trials": "16", "population": "17"},
            "--population must be at most --trials, 16, but got 17. Trials beyond it are the copies.",
        ),
        ({"scheduler": "pbt", "population": "1"}, "--population must be greater than or equal to 2, but got '1'."),
        ({"scheduler": "pbt", "trials": "1"}, "--trials must be at least 2 with --scheduler pbt, but got 1."),
        (
            {"once": True, "grace_period": "2"},
            "--grace-period must come with --scheduler asha, asha-stop, hyperband, median, but got none.",
        ),
    ],
)
def test_an_option_of_another_scheduler_or_one_that_it_cannot_have_is_refused(given, message):
    assert refused({"task": "arc", **given}) == [message]


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        (
            {"fidelity": "gpu-seconds"},
            [
                "--max-fidelity must come with --fidelity gpu-seconds, but got none. "
                "Say what a trial gets at most: 600 or 10m."
            ],
        ),
        (
            {"fidelity": "samples", "scheduler": "none"},
            ["--max-fidelity must come with --fidelity samples, but got none. Say what a trial gets at most: 100000."],
        ),
        (
            {"fidelity": "samples", "max_fidelity": "1e6", "scheduler": "pbt"},
            ["--fidelity must be epochs with --scheduler pbt, but got samples."],
        ),
        (
            {"fidelity": "gpu-seconds", "max_fidelity": "10m", "scheduler": "median"},
            ["--fidelity must be epochs with --scheduler median, but got gpu-seconds."],
        ),
        (
            {"fidelity": "gpu-seconds", "max_fidelity": "1m", "grace_period": "2m"},
            ["--grace-period must be at most --max-fidelity, 60, but got 120."],
        ),
        ({"fidelity": "hours"}, ["--fidelity must be 'epochs', 'samples' or 'gpu-seconds', but got 'hours'."]),
        (
            {"max_fidelity": "4.5", "grace_period": "1.5"},
            [
                "--max-fidelity must be a whole number of epochs, but got 4.5.",
                "--grace-period must be a whole number of epochs, but got 1.5.",
            ],
        ),
    ],
)
def test_what_does_not_go_with_the_unit_of_fidelity_is_told(given, messages):
    assert refused({"task": "arc", **given}) == messages


@pytest.mark.parametrize(
    ("given", "amounts"),
    [
        ({"fidelity": "gpu-seconds", "max_fidelity": "10m", "grace_period": "30s"}, (600, 30)),
        ({"fidelity": "gpu-seconds", "max_fidelity": 1.5}, (1.5, None)),
        ({"fidelity": "samples", "max_fidelity": "1e6", "grace_period": "10000"}, (1e6, 10_000)),
        ({"max_fidelity": "27", "grace_period": "3"}, (27, 3)),
    ],
)
def test_amounts_are_in_the_unit_of_fidelity_and_come_back_from_the_yaml_as_they_are(tmp_path, given, amounts):
    config = load_config({"task": "arc", **given})
    assert (config.max_fidelity, config.grace_period) == amounts
    file = tmp_path / "search.yaml"
    file.write_text(to_yaml(config))
    again = load_config({}, file)
    assert (again.fidelity, again.max_fidelity, again.grace_period) == (config.fidelity, *amounts)


@pytest.mark.parametrize("amount", ["0", "-3", "many", "10m", "nan"])
def test_an_amount_of_samples_is_a_number_above_zero(amount):
    (problem,) = refused({"task": "arc", "fidelity": "samples", "max_fidelity": amount})
    assert problem.startswith("--max-fidelity must be ")
    assert problem.endswith(f"but got '{amount}'.")


def test_all_options_of_another_scheduler_are_told_at_once():
    assert len(refused({"task": "arc", "scheduler": "none", "population": "4", "grace_period": "2"})) == 2


def test_an_option_of_another_scheduler_that_changes_nothing_is_no_mistake():
    assert load_config({"task": "arc", "scheduler": "pbt", "reduction_factor": "3"}).scheduler == "pbt"


def test_a_name_that_exists_is_refused(tmp_path):
    (tmp_path / "old").mkdir()
    with pytest.raises(UsageError, match=r"--name must be new, but old exists in .*\. Choose another\."):
        check_location(tmp_path, "old")


@pytest.mark.parametrize("name", ["a/b", "..", "-x", "a b"])
def test_a_name_that_is_no_folder_name_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match=r"--name must be letters, digits"):
        check_location(tmp_path, name)


def test_a_storage_below_a_file_is_refused_and_nothing_is_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--storage must be a folder that can be written to, but got .*/file/runs"):
        check_location(tmp_path / "file" / "runs", "one")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
