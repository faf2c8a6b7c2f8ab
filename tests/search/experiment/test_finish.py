import io

import pytest
from rich.console import Console

from searchlight.search.errors import UsageError
from searchlight.search.experiment import runner
from searchlight.search.formatting import format_command
from searchlight.search.reporting.console.progress import LiveTable, Progress
from searchlight.search.storage.study_store import open_store
from tests.end_to_end.test_driver_crash import drive, start
from tests.search.execution.cluster.test_resources import planned
from tests.search.objectives import VAL_SCORE


def test_interrupt_leaves_out_the_model_and_not_the_result(tmp_path, monkeypatch):
    def interrupt(folder, register):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "log_best", interrupt)
    stream, asked = io.StringIO(), planned(tmp_path, name="one", register="my model")
    progress = Progress(LiveTable(VAL_SCORE, 1, None), asked.space, Console(file=stream, width=200))
    assert runner._log_best(asked, False, progress) == {}
    again = f"{format_command('report')} one --storage {tmp_path / 'runs'} --register 'my model'"
    assert stream.getvalue().splitlines()[-1] == f"the best checkpoint is no model in MLflow yet: {again}"


def test_complete_search_is_closed_after_its_end_is_sent(tmp_path, monkeypatch):
    searched, held = start(tmp_path)
    drive(searched, held, [])
    held.store.close()
    place = searched.config.path

    def send_end(*_):
        with pytest.raises(UsageError, match="one must not be running, but another process has it open"):
            open_store(place, "")
        return "the result"

    monkeypatch.setattr(runner, "finish", send_end)
    monkeypatch.setattr(runner, "create_tracker", lambda *_: None)
    assert runner.resume("one", place.parent) == "the result"
    open_store(place, "").close()


@pytest.mark.parametrize(
    ("values", "more"), [("0.1,0.2", "the space has no other config"), ("0.1..0.2", "can be raised")]
)
def test_complete_search_says_whether_more_trials_can_begin(tmp_path, capfd, values, more):
    searched, held = start(tmp_path, search={"lr": values}, trials=2, tracker="none")
    drive(searched, held, [])
    held.store.close()
    result = runner.resume("one", searched.config.path.parent)
    told = " ".join(capfd.readouterr().err.split())
    assert "all 2 trials have ended" in told
    assert more in told
    assert result.is_exhausted == (more == "the space has no other config")
