import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchlight.trainables.command.metrics_file import MetricsFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.csv"


def read(file, **options):
    return [(found.step, dict(found.metrics)) for found in file.read(**options)]


def append(path, text):
    with path.open("a") as opened:
        opened.write(text)


def test_rows_are_read_as_they_come(path):
    file = MetricsFile(path)
    assert read(file) == []
    append(path, "epoch,train_loss,eval_loss\n0,0.9,0.8\n")
    assert read(file) == [(0, {"train_loss": 0.9, "eval_loss": 0.8})]
    append(path, "1,0.7,0.6\n2,0.5,nan_is_no_number?\n")
    assert read(file) == [(1, {"train_loss": 0.7, "eval_loss": 0.6}), (2, {"train_loss": 0.5})]
    assert read(file) == []


def test_empty_cells_are_no_values(path):
    # As Lightning's CSVLogger writes them.
    file = MetricsFile(path)
    append(path, "epoch,step,train_loss,val_loss\n0,9,0.5,\n0,9,,0.4\n")
    assert read(file) == [(9, {"epoch": 0, "train_loss": 0.5}), (9, {"epoch": 0, "val_loss": 0.4})]


def test_row_without_a_step_has_its_number(path):
    file = MetricsFile(path)
    append(path, "loss\n0.5\n0.4\n")
    assert read(file) == [(1, {"loss": 0.5}), (2, {"loss": 0.4})]


def test_half_row_waits_for_its_rest(path):
    file = MetricsFile(path)
    append(path, "step,loss\n1,0.2")
    assert read(file) == []
    append(path, "5\n")
    assert read(file) == [(1, {"loss": 0.25})]


def test_last_row_needs_no_end_when_the_program_has_ended(path):
    file = MetricsFile(path)
    append(path, "step,loss\n1,0.5\n2,0.4")
    assert read(file) == [(1, {"loss": 0.5})]
    assert read(file, is_complete=True) == [(2, {"loss": 0.4})]


def test_file_that_is_written_again_is_read_again(path):
    file = MetricsFile(path)
    append(path, "step,loss\n1,0.5\n")
    assert len(read(file)) == 1
    path.write_text("step,loss,accuracy\n1,0.5,\n2,0.4,0.9\n")
    assert read(file) == [(1, {"loss": 0.5}), (2, {"loss": 0.4, "accuracy": 0.9})]


def test_rows_of_an_earlier_run_are_skipped(path):
    append(path, "step,loss\n1,0.5\n")
    file = MetricsFile(path)
    append(path, "2,0.4\n")
    assert read(file) == [(2, {"loss": 0.4})]


@pytest.mark.parametrize("is_renamed", [False, True])
def test_same_rows_as_in_an_earlier_run_are_read_if_the_file_is_written_again(path, is_renamed):
    text = "step,loss\n1,0.5\n"
    path.write_text(text)
    os.utime(path, (1, 1))
    file = MetricsFile(path)
    place = path.with_name("new.csv") if is_renamed else path
    place.write_text(text + "2,0.4\n" * is_renamed)
    place.rename(path)
    assert read(file, is_complete=True) == [(1, {"loss": 0.5}), (2, {"loss": 0.4})][: 1 + is_renamed]
    assert read(file, is_complete=True) == []


def test_rows_of_an_earlier_run_are_skipped_if_nothing_is_written(path):
    path.write_text("step,loss\n1,0.5\n")
    assert read(MetricsFile(path), is_complete=True) == []


def test_json_lines_are_read(path):
    file = MetricsFile(path)
    append(path, '{"step": 1, "val": {"loss": 0.5}}\n{"val": {"loss": 0.4}}\nno json\n')
    assert read(file) == [(1, {"val/loss": 0.5}), (2, {"val/loss": 0.4})]


@given(content=st.binary())
def test_no_content_breaks_the_reader(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("file") / "log.csv"
    file = MetricsFile(path)
    path.write_bytes(content)
    assert all(found.metrics for found in file.read(is_complete=True))
