"""What a search with confirming runs shows of them, wherever it is shown."""

import io
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from rich.console import Console

from searchlight.search.analysis.comparison import build_comparison_rows, search_curve
from searchlight.search.analysis.confirmed_best import confirm, find_confirmed_best
from searchlight.search.analysis.result import SearchResult
from searchlight.search.report import main
from searchlight.search.reporting.console.search_state import describe_status
from searchlight.search.reporting.console.summary import print_summary
from searchlight.search.reporting.explanation import explain_search
from searchlight.search.reporting.html.report import render_report
from searchlight.search.reporting.html.sections.confirmation import build as build_section
from searchlight.search.reporting.parquet import write_parquet
from searchlight.search.reporting.status import build_status
from searchlight.search.space.objectives import Objective
from searchlight.search.study.record import load_search
from searchlight.search.tracking.description import render_description
from tests.search.output_schemas import check_output
from tests.search.stored_studies import Search


@pytest.fixture
def search(tmp_path):
    """Three trials: the defaults, a lucky one, and one that is better under new seeds."""
    search = Search(tmp_path)
    search.study.save_metadata({**search.study.metadata, "first": [None]})
    for scores in ((0.3, 0.5), (0.4, 0.9), (0.5, 0.7)):
        search.run(*scores)
    yield search
    search.store.close()


def confirm_all(search, better=0.2):
    """Runs under three seeds, in which trial 2 is better than the defaults and trial 1 is worse."""
    for seed, luck in ((11, 0.01), (12, 0.0), (13, -0.01)):
        search.confirm(None, seed, 0.5 + luck)
        search.confirm(1, seed, 0.49 + luck / 2)
        search.confirm(2, seed, 0.5 + better + luck)


def result_of(search):
    return SearchResult.from_record(load_search(search.config.local_path))


def show(result, folder):
    """What the terminal shows of a search, by line."""
    mlflow = {"tracking_uri": f"sqlite:///{folder}/mlflow.db", "experiment_id": "1", "run_id": "abc"}
    stream = io.StringIO()
    print_summary(Console(file=stream, width=200), replace(result, mlflow=mlflow), folder)
    return stream.getvalue().splitlines()


def test_best_trial_is_the_confirmed_one(search):
    confirm_all(search)
    result = result_of(search)
    assert (result.best.trial_id, result.best.value) == (2, 0.7)
    runs = {run.number: run for run in result.searched.confirming_runs}
    run = runs[result.best.run]
    assert run.user_attrs["confirms"] == {"trial": 2, "round": 0, "seed": 11}, "the best of its three runs"
    assert result.best.config == run.user_attrs["config"]
    assert result.best.checkpoint == f"{run.number}-2.pt"


@pytest.mark.parametrize(
    ("values", "is_ignored"),
    [((0.5, 0.6, 0.4), True), ((0.5, 0.5, 0.5), False), ((0.5,), False)],
    ids=["equal runs of configs that differ", "all alike by chance", "one config"],
)
def test_equal_runs_under_new_seeds_confirm_nothing(search, tmp_path, values, is_ignored):
    for seed in (11, 12):
        for trial, value in zip((None, 1, 2), values, strict=False):
            search.confirm(trial, seed, value)
    result = result_of(search)
    assert bool(result.unconfirmed) == is_ignored
    told = "nothing, because the task ignores its seed: the runs of a config are equal under different seeds"
    assert (f"confirmed: {told}" in show(result, tmp_path)) == is_ignored
    assert (told in render_report(result.searched)) == is_ignored
    assert result.as_json().get("unconfirmed") == (told if is_ignored else None)
    if is_ignored:
        assert (result.confirmations, result.best.trial_id) == ([], 1), "the best of the search itself"


def test_json_has_the_estimate_of_the_confirmed_trial(search):
    confirm_all(search)
    told = check_output("result", result_of(search).as_json())
    confirmed = told["best"]["confirmed"]
    low, high = confirmed["interval"]
    assert low < confirmed["mean"] < high
    assert confirmed["mean"] == pytest.approx(0.7, abs=0.02)
    assert (confirmed["seeds"], confirmed["trial"]) == (3, 2)
    assert confirmed["probability_best"] > 0.95
    assert confirmed["probability_beats_defaults"] > 0.95
    assert confirmed["difference"] == pytest.approx(0.2, abs=0.03)
    assert confirmed["values"] == {"11": 0.71, "12": 0.7, "13": 0.69}
    (of_all,) = told["confirmations"]
    assert [config["trial"] for config in of_all["configs"]] == [2, None, 1]


def test_json_of_an_unconfirmed_search_says_nothing_of_it(search):
    told = check_output("result", result_of(search).as_json())
    assert "confirmed" not in told["best"]
    assert "confirmations" not in told
    assert (told["best"]["trial_id"], "run" in told["best"]) == (1, False)


def test_defaults_are_told_where_no_finalist_beats_them(search):
    confirm_all(search, better=-0.01)
    result = result_of(search)
    assert result.confirmation.statement == "no finalist is shown to beat the defaults; keep them"
    run = next(run for run in result.searched.confirming_runs if run.number == result.best.run)
    assert run.user_attrs["confirms"]["trial"] is None
    assert result.best.trial_id == run.number, "the search did not try the defaults"


def test_confirming_runs_are_no_trials(search):
    before = result_of(search)
    confirm_all(search)
    after = result_of(search)
    assert after.outcomes == before.outcomes == {"completed": 3}
    assert after.trials.equals(before.trials)


def test_single_run_of_each_config_confirms_nothing(search):
    search.confirm(None, 11, 0.5)
    search.confirm(1, 11, 0.8)
    assert confirm(load_search(search.config.local_path)) == []


@pytest.mark.parametrize(("outcome", "compared"), [("failed", {None, 1, 2}), ("diverged", {None, 1})])
def test_failed_run_counts_in_no_mean(search, outcome, compared):
    confirm_all(search)
    search.confirm(2, 14, 5.0, outcome=outcome)
    (confirmation,) = confirm(load_search(search.config.local_path))
    assert {config.trial: len(config.values) for config in confirmation.configs} == dict.fromkeys(compared, 3)
    html = render_report(load_search(search.config.local_path))
    assert f"Under a new seed, trial 2 {outcome}. " in html


@pytest.mark.parametrize(("diverged", "said"), [(None, "the defaults"), (1, "trial 1")], ids=str)
def test_config_that_diverged_once_is_worse_than_others(search, diverged, said):
    confirm_all(search)
    search.confirm(diverged, 14, -5.0, outcome="diverged")
    (confirmation,) = confirm(load_search(search.config.local_path))
    assert diverged not in {config.trial for config in confirmation.configs}
    assert (confirmation.chosen, confirmation.diverged) == (2, (diverged,))
    assert confirmation.statement.endswith(f" ({said} diverged under a new seed)")


@pytest.mark.parametrize("outcomes", [("diverged", "failed"), ("failed", "diverged")], ids=str)
def test_config_that_diverged_once_and_failed_once_is_worse_than_others(search, outcomes):
    confirm_all(search)
    for seed, outcome in enumerate(outcomes, 14):
        search.confirm(1, seed, -5.0, outcome=outcome)
    (confirmation,) = confirm(load_search(search.config.local_path))
    assert confirmation.diverged == (1,)


def test_config_that_was_infeasible_once_is_left_out(search):
    confirm_all(search)
    search.confirm(1, 14, 9.0, outcome="infeasible")
    (confirmation,) = confirm(load_search(search.config.local_path))
    assert 1 not in {config.trial for config in confirmation.configs}
    assert (confirmation.diverged, confirmation.infeasible) == ((), (1,))
    assert confirmation.statement.endswith(" (trial 1 infeasible under a new seed)")


@pytest.mark.parametrize("seeds", [(11, 12), (11,)], ids=["estimated", "too few runs"])
def test_finalist_that_diverged_is_not_the_best(search, seeds):
    for seed in seeds:
        search.confirm(None, seed, 0.5)
    search.confirm(1, 11, 0.4, outcome="diverged")
    result = result_of(search)
    assert result.best.trial_id != 1
    assert (result.confirmation is not None) == (len(seeds) > 1)


def test_terminal_names_a_finalist_that_diverged(search, tmp_path):
    for seed in (11, 12):
        search.confirm(None, seed, 0.5)
    search.confirm(1, 11, 0.4, outcome="diverged")
    shown = show(result_of(search), tmp_path)
    assert "  no finalist is shown to beat the defaults; keep them (trial 1 diverged under a new seed)" in shown
    assert "confirmation: trial 1 diverged under seed 11" in shown


@pytest.mark.parametrize(("stopped", "says"), [("val/score>=0.9 in trial 1", True), ("interrupted", False)])
def test_terminal_says_how_a_stopped_search_is_confirmed(search, tmp_path, stopped, says):
    about = search.study.metadata
    search.study.save_metadata({**about, "config": {**about["config"], "confirm": None}})
    shown = show(replace(result_of(search), stopped=stopped), tmp_path)
    assert any(line.startswith("confirm: ") and line.endswith("--confirm 6") for line in shown) == says


def test_each_objective_has_intervals_and_the_front_stays(tmp_path):
    search = Search(tmp_path, objective=Objective("val/score", "max"))
    for scores in ((0.3, 0.5), (0.4, 0.9)):
        search.run(*scores)
    for number, seed in ((None, 1), (0, 1), (None, 2), (0, 2)):
        search.confirm(number, seed, 0.5 + seed / 100)
    search.store.close()
    record = load_search(search.config.local_path)
    for trial in record.all_trials:
        for key in ("report/1", "report/2"):
            trial.user_attrs[key]["metrics"]["speed"] = 2.0
    several = type(record)(
        record.name, record.trials, (*record.objectives, Objective("speed", "max")), record.about,
        confirming_runs=record.confirming_runs,
    )  # fmt: skip
    confirmations = confirm(several)
    assert [each.objective.metric for each in confirmations] == ["val/score", "speed"]
    assert find_confirmed_best(several, confirmations).trial_id == 1, "the front says more than one of them"
    heads = [line.split() for line in show(SearchResult.from_record(several), tmp_path) if " gain over " in line]
    assert [head[:3] for head in heads] == [["seeds", "estimated", "val/score"], ["seeds", "estimated", "speed"]]
    told = "the confirming runs estimate each objective of the defaults and trial 0, and choose none of them"
    assert explain_search(several)["best"] == told
    assert f"({told})" in describe_status(several, build_status(several))[2]
    result = SearchResult.from_record(several)
    assert f"best val/score 0.9 in trial 1. Confirmed: {told}" in result._repr_html_()
    note = render_description(search.config.local_path, result)
    assert note.startswith(f"**Confirmed:** {told}.\n\n**Best val/score: 0.9** (trial 1)")


def test_terminal_shows_estimates_before_the_values_of_the_search(search, tmp_path):
    confirm_all(search)
    result = result_of(search)
    lines = show(result, tmp_path)
    at = next(place for place, line in enumerate(lines) if line.startswith("best: "))
    assert lines[at].startswith("best: trial 2, val/score 0.69")
    assert " estimated over 3 new seeds, 90 % interval 0.6" in lines[at]
    assert lines[at + 1].strip().startswith("trial 2 beats the defaults by 0.19")
    assert lines[at + 2] == "  in the search it had 0.7 after epoch 2"
    assert "varies by" in lines[at + 3]
    assert [line.split("  ")[1] for line in lines[at + 5 : at + 8]] == ["trial 2", "the defaults", "trial 1"]
    assert f"checkpoint: {result.best.run}-2.pt, of confirming run {result.best.run}" in lines


def test_terminal_shows_the_baseline_beside_winning_defaults(search, tmp_path):
    tried = load_search(search.config.local_path).trials[0].params
    search.study.save_metadata({**search.study.metadata, "first": [tried]})
    confirm_all(search, better=-0.01)
    record = load_search(search.config.local_path)
    for trial in record.trials:
        trial.user_attrs["report/2"]["metrics"]["val/score_baseline"] = 0.2
    lines = show(SearchResult.from_record(record), tmp_path)
    assert "  in the search trial 0 had 0.5 (baseline 0.2) after epoch 2" in lines


def test_page_begins_with_the_confirmation(search):
    confirm_all(search)
    html = render_report(load_search(search.config.local_path))
    assert html.index("<h2>The confirmation</h2>") < html.index("<h2>The best trial of the search</h2>")
    assert "Trial 2 beats the defaults by 0.19" in html
    assert "confirmed val/score of trial 2 (90 % interval)" in html
    assert "docs/development/confirmation.md" in html


@pytest.mark.parametrize("other", [None, 1])
def test_page_names_defaults_only_if_they_were_confirmed(search, other):
    for seed in (11, 12):
        search.confirm(other, seed, 0.5 + seed / 100)
        search.confirm(2, seed, 0.7)
    told = build_section(load_search(search.config.local_path)).says
    assert ("After the search, the best trials were trained" in told) == (other is not None)
    assert ("the best trials and the task's defaults were trained" in told) == (other is None)


def test_parquet_says_what_each_trial_was_for(search, tmp_path):
    confirm_all(search)
    write_parquet(load_search(search.config.local_path).all_trials, tmp_path / "trials.parquet")
    rows = pq.read_table(tmp_path / "trials.parquet").to_pylist()
    assert {row["trial_id"]: row["purpose"] for row in rows} == {
        **dict.fromkeys(range(3), "search"),
        **dict.fromkeys(range(3, 12), "confirm"),
    }
    assert {row["outcome"] for row in rows} == {"completed"}


def test_parent_run_names_the_confirmed_value(search):
    confirm_all(search)
    result = result_of(search)
    assert result.metrics["confirmed/val/score"] == pytest.approx(0.7, abs=0.02)
    assert result.metrics["confirmed/val/score_low"] < result.metrics["confirmed/val/score_high"]
    assert result.metrics["confirmed/probability_beats_defaults"] > 0.95
    note = render_description(search.config.local_path, result)
    assert note.startswith("**Confirmed:** trial 2 beats the defaults by 0.19")
    assert note.splitlines()[2].startswith("**val/score: 0.7** (trial 2): `lr` "), "trial 1 has the best one, 0.9"


def test_notebook_shows_the_statement(search):
    confirm_all(search)
    shown = result_of(search)._repr_html_()
    assert ", val/score 0.7 in trial 2. Confirmed: trial 2 beats the defaults by 0.19" in shown


def test_comparison_has_the_confirmed_value_of_each_side(search, tmp_path):
    confirm_all(search)
    confirmed = load_search(search.config.local_path)
    other = Search(tmp_path, name="two")
    other.run(0.6)
    other.store.close()
    rows = build_comparison_rows([search_curve(confirmed), search_curve(load_search(other.config.local_path))])
    ((_, own, theirs),) = [row for row in rows if row[0] == "confirmed val/score (90 % interval)"]
    assert own.endswith("), trial 2")
    assert theirs == "-"


def test_report_prints_the_confirmation_below_the_trials(search):
    confirm_all(search)
    search.store.close()
    done = CliRunner().invoke(main, ["one", "--storage", str(search.config.storage)])
    assert "confirmed: trial 2 beats the defaults by 0.19" in done.stdout
    purposes = pq.read_table(search.config.local_path / "trials.parquet")["purpose"].to_pylist()
    assert purposes.count("confirm") == 18
