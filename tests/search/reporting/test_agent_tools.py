"""What an agent sees of a search that runs, and what it may change."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from searchlight.search.errors import UsageError
from searchlight.search.reporting import agent_tools, running_search
from searchlight.search.reporting.agent_tools import ANSWER_BYTES, AgentTools, bound
from searchlight.search.steering.command import Answer, Command, LogEntry
from tests.search.execution.searcher_harness import end, report


@pytest.fixture
def tools(driver, tmp_path):
    return AgentTools(tmp_path.parent, steers=True, author="agent:test")


def test_agent_that_may_only_read_changes_nothing(driver, tmp_path):
    tools = AgentTools(tmp_path.parent)
    for change in (lambda: tools.propose(driver.name, [{"lr": 0.1}], ""), lambda: tools.steer(driver.name, "pause")):
        with pytest.raises(UsageError, match="must be started with --allow-steering"):
            change()
    assert driver.name in tools.list_searches()["searches"]
    assert tools.get_trials(driver.name, "lr>=0")["in_all"] == 1
    assert tools.get_curve(driver.name, [0]) == {"curves": {"0": {1: 0.5}}, "step": 1}
    assert tools.explain(driver.name, 0)["rungs"][0]["rank"] == 1
    assert "no trial has a result yet" in tools.explain(driver.name)["best"]
    with pytest.raises(UsageError, match=r"name must be one of list_searches, but got '\.\./x'"):
        tools.get_state("../x")
    with pytest.raises(UsageError, match="there is no 7"):
        tools.get_curve(driver.name, [7])


def test_command_is_previewed_and_then_committed_once(driver, tools):
    found = tools.steer(driver.name, "budget", {"trials": 8}, why="enough")
    assert found["effect"] == "trials 8"
    assert driver.searcher.study.get_commands() == []
    entry = tools.steer(driver.name, token=found["token"])
    assert (entry["answer"]["accepted"], entry["command"]["author"], entry["command"]["why"]) == (
        True, "agent:test", "enough",
    )  # fmt: skip
    with pytest.raises(UsageError, match="token must be that of a preview"):
        tools.steer(driver.name, token=found["token"])
    with pytest.raises(UsageError, match="trial 9 must be one of the search"):
        tools.steer(driver.name, "stop", {"trials": [9]})
    with pytest.raises(UsageError, match="use propose"):
        tools.steer(driver.name, "try", {"point": {"lr": 0.1}})


def test_preview_that_another_command_has_overtaken_is_refused(driver, tools):
    first, second = tools.steer(driver.name, "budget", {"trials": 8}), tools.steer(driver.name, "budget", {"trials": 9})
    assert tools.steer(driver.name, token=first["token"])["answer"]["accepted"]
    answer = tools.steer(driver.name, token=second["token"])["answer"]
    assert (answer["accepted"], "trials was decided by agent:test" in answer["effect"]) == (False, True)


def test_agent_proposes_its_share_of_the_trials(driver, tools):
    tools.steer(driver.name, token=tools.steer(driver.name, "budget", {"trials": 90})["token"])
    points = [{"lr": lr} for lr in (0.1, 7, 0.2, 0.3, 0.4)]
    answers = tools.propose(driver.name, points, "a ladder")["answers"]
    assert [answer["accepted"] for answer in answers] == [True, False, True, True, False]
    assert answers[-1]["effect"] == "agent:test must try at most 3 points, but has tried 3 already."


def test_servers_of_one_agent_share_its_quota(driver, tools, tmp_path):
    others = [AgentTools(tmp_path.parent, True, "agent:test") for _ in range(5)]
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(each.propose, driver.name, [{"lr": 0.1 + n / 100}], "") for n, each in enumerate(others)]
    accepted = [answer["accepted"] for each in asked for answer in each.result()["answers"]]
    assert sorted(accepted) == [False, False, True, True, True]


def test_command_without_a_driver_waits(driver, tools, monkeypatch):
    monkeypatch.setattr(running_search, "WAIT_S", 0.1)
    with driver.lock, pytest.raises(UsageError, match="do not send it again"):
        tools.propose(driver.name, [{"lr": 0.1}], "")


def test_gpu_hours_of_an_agent_are_limited(driver, tools):
    tools.gpu_hours = 0.0
    (answer,) = tools.propose(driver.name, [{"lr": 0.1}], "")["answers"]
    assert answer["effect"] == "trials of agent:test must take at most 0 GPU-hours, but took 0."


@pytest.mark.parametrize(("operation", "more"), [("keep", {}), ("extend", {"epochs": 1})])
def test_agent_with_gpu_hours_lengthens_its_own_trials_only(driver, tools, operation, more):
    tools.gpu_hours = 1.0
    driver.call(driver.searcher.suggest, "t1")
    with pytest.raises(UsageError, match=f"must {operation} trials of its own points only, .* but got .*0"):
        tools.steer(driver.name, operation, {"trials": [0], **more})


def test_state_is_small_and_tells_what_is_new(driver, tools):
    cursor = tools.get_state(driver.name)["cursor"]
    driver.call(driver.searcher.suggest, "t1")
    driver.call(end, driver.searcher, "t1", "failed", "no " * 500)
    for number in range(1, 31):
        entry = LogEntry(number, Command("avoid", {"region": f"lr>=0.9{number}"}), Answer(True, "no trial is there"))
        driver.call(driver.searcher.study.record_command, entry)
    state = tools.get_state(driver.name, cursor)
    assert len(json.dumps(state, indent=2)) <= ANSWER_BYTES, "as the server writes it"
    assert state["new_in_all"] == 31
    assert state["new"][-1]["command"] == "avoid"
    assert tools.get_state(driver.name, state["cursor"])["new"] == []
    with pytest.raises(UsageError, match="cursor must be that of an earlier state"):
        tools.get_state(driver.name, "x")


def test_long_lists_are_read_page_by_page(driver, tools, tmp_path):
    study = driver.searcher.study
    for number in range(60):
        attributes = {"config": {"epochs": 3}, "reason": f"{number} " + "because " * 20}
        driver.call(study.create_copy, driver.searcher.space, {"lr": 0.5}, attributes)
    read, cursor = [], 0
    while cursor is not None:
        page = tools.get_trials(driver.name, limit=100, cursor=cursor)
        assert len(json.dumps(page, indent=2)) <= ANSWER_BYTES
        read, cursor = read + [row["trial"] for row in page["trials"]], page["cursor"]
    assert read == [*range(60, -1, -1)]
    assert tools.get_trials(driver.name, cursor=61)["trials"] == []
    with pytest.raises(UsageError, match="cursor must be that of an earlier answer"):
        tools.list_searches(-1)


def test_long_curve_is_thinned_and_keeps_its_end(driver, tools):
    for epoch in range(2, 2000):
        driver.call(driver.searcher.study.report, 0, epoch, 1 / epoch, {"metrics": {"val/loss": 1 / epoch}})
    found = tools.get_curve(driver.name, [0])
    assert len(json.dumps(found, indent=2)) <= ANSWER_BYTES
    epochs = [*found["curves"]["0"]]
    assert (epochs[0], epochs[-1], epochs[1] - epochs[0]) == (1, 1999, found["step"])
    with pytest.raises(UsageError, match="trials must be at most 10, but got 11"):
        tools.get_curve(driver.name, [*range(11)])


def test_proposal_has_few_points(driver, tools):
    with pytest.raises(UsageError, match="points must be at most 20 at once, but got 21"):
        tools.propose(driver.name, [{"lr": n / 100} for n in range(21)], "")


def test_answer_that_would_be_too_large_is_cut_visibly():
    answer = {
        "rungs": [{"better": [*range(1000)]}] * 50,
        "reason": "because " * 1000,
        "config": dict.fromkeys("abc", 1),
    }
    cut = bound(answer)
    assert len(json.dumps(cut, indent=2)) <= ANSWER_BYTES
    assert cut["reason"].endswith("...")
    assert cut["rungs"][-1].startswith("... ")
    assert bound({"a": [1, 2]}) == {"a": [1, 2]}


def test_explanation_names_few_of_many_better_trials(driver, tools, monkeypatch):
    monkeypatch.setattr(agent_tools, "BETTER", 1)
    for number in (1, 2):
        driver.call(driver.searcher.suggest, f"t{number}")
        driver.call(report, driver.searcher, f"t{number}", 1, 0.4 - number / 100, done=True)
    (rung,) = tools.explain(driver.name, 0)["rungs"]
    assert (rung["rank"], rung["of"], len(rung["better"])) == (3, 3, 1)


def test_explanation_ranks_as_the_scheduler_does(driver, tools):
    for number, loss in ((1, 0.1), (2, 0.2)):
        driver.call(driver.searcher.suggest, f"t{number}")
        driver.call(report, driver.searcher, f"t{number}", 1, loss, done=number != 1)
    driver.call(end, driver.searcher, "t1", "diverged", "val/loss is nan")
    ranks = {number: tools.explain(driver.name, number)["rungs"][0]["rank"] for number in range(3)}
    assert ranks == {2: 1, 0: 2, 1: 3}, "one that diverged later comes last"


def test_confirming_runs_are_hidden_until_the_end(driver, tools):
    attributes = {"config": {"seed": 77}, "confirms": {"trial": 0, "round": 0, "seed": 77}}
    study = driver.searcher.study
    driver.call(study.create_copy, driver.searcher.space, {}, attributes)
    assert [each["trial"] for each in tools.get_state(driver.name)["unfinished"]] == [0]
    with pytest.raises(UsageError, match="there is no 1"):
        tools.explain(driver.name, 1)
    driver.call(study.record_driver_end, 2.0)
    assert "once more, under the seed of round 0" in tools.explain(driver.name, 1)["origin"]


@pytest.mark.parametrize("until", ["problem", "any"])
def test_wait_ends_with_what_it_waits_for(driver, tools, until):
    driver.call(driver.searcher.suggest, "t1")
    assert tools.wait(driver.name, until, 0.0) == {"happened": [], "running": True}
    timer = threading.Timer(1.0, driver.call, [end, driver.searcher, "t1", "failed", "no memory"])
    timer.start()
    found = tools.wait(driver.name, until, 60.0)
    assert found == {"happened": [{"trial": 1, "event": "problem", "outcome": "failed"}], "running": True}
    with pytest.raises(UsageError, match="until must be rung"):
        tools.wait(driver.name, "tomorrow")
