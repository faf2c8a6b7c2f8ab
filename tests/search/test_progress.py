import io

import pytest
from rich.console import Console

from search.progress import Progress
from search.space import resolve
from trainables.task import TaskConfig, searchable


class Config(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)


@pytest.fixture
def shown():
    """Plays a short search; returns what is shown in a terminal or elsewhere."""

    def play(terminal):
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=terminal, width=120)
        with Progress(resolve(Config, {}, {}), "val/loss", "min", 2, 6.0, console) as progress:
            progress.trial_started(0, {"precision": "bf16", "lr": 0.01, "epochs": 9})
            progress.trial_reported(0, 1, {"val/loss": 0.5}, 0.0)
            progress.trial_reported(0, 2, {"val/loss": 0.75}, 0.0)
            progress.trial_ended(0, "diverged", "val/loss is nan")
        return stream.getvalue()

    return play


def test_elsewhere_there_are_plain_lines(shown):
    assert shown(terminal=False).splitlines() == [
        "trial   0  started   precision=bf16  lr=0.01",
        "trial   0  epoch 1   val/loss 0.5",
        "trial   0  epoch 2   val/loss 0.75",
        "trial   0  diverged  val/loss is nan",
    ]


def test_a_copy_is_told_with_the_trial_that_it_goes_on_from():
    stream = io.StringIO()
    progress = Progress(resolve(Config, {}, {}), "val/loss", "min", 2, 6.0, Console(file=stream, width=120))
    progress.trial_started(7, {"precision": "bf16", "lr": 0.01}, 3)
    assert stream.getvalue() == "trial   7  started   precision=bf16  lr=0.01  from trial 3\n"


def test_in_a_terminal_a_live_line_tells_where_the_search_stands(shown):
    text = shown(terminal=True)
    assert "1/2 trials done, 0 going on, best val/loss 0.5 (trial 0, epoch 1)" in text
    assert "gone, about 0:0" in text
