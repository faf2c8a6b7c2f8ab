"""Commands to a searcher whose drivers and clients are killed, in each kind of store."""

import random
import time
from contextlib import suppress

import pytest
from optuna.samplers import RandomSampler

from searchlight.search.space.objectives import Objective
from searchlight.search.steering.command import Command
from searchlight.search.steering.mailbox import (
    read_requests,
    send,
    wait_for_answer,
    write_answer,
)
from searchlight.search.steering.operations import OPERATIONS
from searchlight.search.study.study import create_study
from searchlight.search.study.trial import get_outcome
from searchlight.trainables.filesystem.paths import parse_path
from searchlight.trainables.worker.messages import EpochReport
from tests.search.execution.searcher_harness import hand_on, searcher_over
from tests.search.experiment.steered_searcher import Driver
from tests.search.objectives import VAL_LOSS

COMMANDS = [
    Command("stop", {"trials": [0]}, "ann", id="stop"),
    Command("keep", {"trials": [1]}, "ann", id="keep"),
    Command("extend", {"trials": [1], "epochs": 2}, "ann", id="extend"),
    Command("believe", {"point": {"lr": 0.3}}, "ann", id="believe"),
    Command("try", {"point": {"lr": 0.25}, "full": True}, "ann", id="try"),
    Command("avoid", {"region": "lr>=0.5"}, "ann", id="avoid"),
    Command("avoid", {"region": "lr>=0"}, "ann", id="refused"),
    Command("narrow", {"ranges": {"lr": "0.1..0.4"}}, "ann", id="narrow"),
    Command("budget", {"trials": 7}, "ann", id="budget"),
    Command("pause", {"drain": True}, "ann", id="pause"),
    Command("continue", {}, "ann", id="continue"),
    Command("undo", {"command": "avoid"}, "ann", id="undo"),
    Command("finish", {}, "ann", id="finish"),
]


def test_each_command_is_among_them():
    assert {command.operation for command in COMMANDS} == {*OPERATIONS}


class Killed(BaseException):
    """As a SIGKILL of the driver: nothing after it is done."""


def kill(*arguments):
    raise Killed


def begin(driver):
    for number in range(2):
        driver.searcher.suggest(f"t{number}")
        metrics = {"val/loss": 0.5, "val/latency": 1.0}
        hand_on(driver.searcher, f"t{number}", EpochReport(1, metrics, f"/nowhere/{number}.pt", {}, done=True))
    return driver


def describe(study):
    """What commands have changed: the log, the ends of trials, and the points that wait."""
    log = [(entry.revision, entry.command.id, entry.answer) for entry in study.get_commands()]
    ends = [(get_outcome(trial), trial.user_attrs.get("reason")) for trial in study.get_trials()]
    return log, ends, [trial.system_attrs["fixed_params"] for trial in study.get_all_trials()[2:]]


@pytest.fixture(params=["journal", "sqlite", "postgresql", "bucket"])
def kept(request, tmp_path):
    """A study of two objectives of each kind of store, and the place of its search."""
    place, url = tmp_path / "kept", ""
    if request.param == "bucket":
        place = parse_path(request.getfixturevalue("s3")) / "kept"
    elif request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/studies.db"
    elif request.param == "postgresql":
        url = request.getfixturevalue("server").database(f"d{time.time_ns()}")
    place.mkdir(parents=True, exist_ok=True)
    objectives = [VAL_LOSS, Objective("val/latency", "min")]
    study, store = create_study(place, RandomSampler, objectives, url=url)
    yield study, place
    store.close()


@pytest.mark.parametrize("seed", range(3))
def test_kills_of_drivers_and_clients_change_nothing(kept, make_searcher, tmp_path, seed):
    (study, place), draw = kept, random.Random(seed)
    calm = begin(Driver(make_searcher(trials=6), tmp_path))
    answers = [calm.apply(command).answer for command in COMMANDS]
    driver = begin(Driver(searcher_over(study, place, 6), place))
    for command, answer in zip(COMMANDS, answers, strict=True):
        for part in draw.sample(["_check", "update_trials"], draw.randrange(3)):  # before the log, and after it
            send(place, command)
            setattr(driver.steering, part, kill)
            with suppress(Killed):
                driver.steering._apply(*read_requests(place, pytest.fail))
            study.live.clear()
            driver = Driver(searcher_over(study, place, 6), place)
        for _ in range(draw.choice((1, 2))):  # a client that was killed before its answer sends its command again
            send(place, command)
            write_answer(place, driver.apply(*read_requests(place, pytest.fail)))
        assert wait_for_answer(place, command, 0.0).answer == answer
    assert describe(study) == describe(calm.study)
    assert driver.study.allows({"lr": 0.3})
    assert not driver.study.allows({"lr": 0.6}), "by the range alone"
