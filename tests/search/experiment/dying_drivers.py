"""Kills the drivers of searches, and takes the searches up."""

import pytest

from tests.end_to_end.test_driver_crash import drive, told


class Killed(BaseException):
    """The driver is gone."""


def kill_at_call(patch, owner, method, moment, done, die):
    """Call `die` at call `moment` of a method: before it, or once it is `done`. Return a list of all calls."""
    calls, original = [], getattr(owner, method)

    def call(self, *arguments):
        calls.append(0)
        is_moment = len(calls) == moment
        if is_moment and not done:
            die(self)
        answer = original(self, *arguments)
        if is_moment:
            die(self)
        return answer

    patch.setattr(owner, method, call)
    return calls


def check_deaths(monkeypatch, begin, kill_at, resume, step):
    """Check that a search that died at every `step`-th moment and was resumed equals one that never died.

    Args:
        begin: Starts a search in a place of that name.
        kill_at: Makes the driver die at a moment. Returns a list that has an entry for each moment.
        resume: Takes a dead search up, adds what it trains to a list, and returns its study.
    """
    planned, held = begin("whole")
    once = []
    with monkeypatch.context() as patch:
        moments = kill_at(patch, -1)
        drive(planned, held, once)
    assert len(moments) > 20
    for moment in range(1, len(moments), step):
        planned, dying = begin(str(moment))
        trained: list[tuple[int, int]] = []
        with monkeypatch.context() as patch:
            kill_at(patch, moment)
            with pytest.raises(Killed):
                drive(planned, dying, trained)
        assert told(resume(planned, dying, trained)) == told(held.study), moment
        assert len(trained) <= len(once) + 1, "at most the epoch that ran is trained again"
