import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from searchlight.trainables.command.collector import Measurement
from searchlight.trainables.command.output import OutputPatterns


def find(texts, *lines):
    reader = OutputPatterns(texts)
    return [(found.step, dict(found.metrics)) for line in lines for found in reader.find(line)]


def test_first_group_of_a_pattern_is_the_value():
    line = "step 250: train loss 1.9, val loss 2.0431"
    assert find(["val/loss=val loss ([0-9.]+)"], line) == [(None, {"val/loss": 2.0431})]


def test_group_named_step_is_the_step():
    pattern = r"val/loss=step (?P<step>\d+): .*val loss ([0-9.]+)"
    assert find([pattern], "step 250: train loss 1.9, val loss 2.0431") == [(250, {"val/loss": 2.0431})]


def test_group_named_value_is_the_value():
    assert find([r"loss=(train|val) loss (?P<value>\S+)"], "val loss 0.5") == [(None, {"loss": 0.5})]


def test_values_of_one_line_are_one_measurement():
    texts = [r"loss=loss: (\S+)", r"accuracy=accuracy: (\S+)"]
    assert find(texts, "loss: 0.2500, accuracy: 93%") == [(None, {"loss": 0.25, "accuracy": 93})]


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 1e-3), ("-2", -2), ("0.25.", 0.25), ("inf", math.inf), (".5,", 0.5), ("1_000", 1000)]
)
def test_numbers_are_read_as_programs_print_them(text, value):
    assert find([r"loss=loss (\S+)"], f"loss {text}") == [(None, {"loss": value})]


def test_nan_is_a_value():
    ((_, metrics),) = find([r"loss=loss (\S+)"], "loss nan")
    assert math.isnan(metrics["loss"])


@pytest.mark.parametrize("number", [1.5e-05, -0.25, -2.5e07, 1e300, math.inf, -math.inf])
@pytest.mark.parametrize("line", ["epoch 3: loss {}", "epoch 3, loss={}, lr=1e-05", "{{'loss': {}}}"])
def test_expression_for_digits_reads_the_whole_number(line, number):
    assert find([r"loss=loss'?[ =:]+([0-9.]+)"], line.format(number)) == [(None, {"loss": number})]


def test_expression_for_digits_sees_a_diverged_training():
    ((step, metrics),) = find([r"loss=epoch (?P<step>\d+): loss ([0-9.]+)"], "epoch 3: loss nan (best 0.5)")
    assert step == 3
    assert math.isnan(metrics["loss"])


@pytest.mark.parametrize("line", ["loss nan val_loss 0.3", "loss: nan, lr: 0.1", "loss=-nan best 0.5"])
@pytest.mark.parametrize("pattern", [r"loss=loss[ :=]+([0-9.]+)", r"loss=loss.*?([0-9.]+)", r"loss=([0-9.]+)"])
def test_later_number_of_a_line_does_not_hide_a_diverged_training(pattern, line):
    ((_, metrics),) = find([pattern], line)
    assert math.isnan(metrics["loss"])


@pytest.mark.parametrize("pattern", [r"loss=loss: (\d+\.\d+)", r"loss=(\d+\.\d+)", r"loss=loss: (\d*\.\d*), acc"])
@pytest.mark.parametrize("number", [-0.25, -math.inf, math.inf])
def test_expression_with_a_point_reads_the_whole_number(pattern, number):
    assert find([pattern], f"loss: {number}, acc 0.5") == [(None, {"loss": number})]


def test_number_that_the_expression_reads_counts_in_the_place_of_a_masked_one():
    pattern = r"loss=step (?P<step>-?\d+): .*?(-?\d\.\d{4})"
    assert find([pattern], "step -1: nan-safe loss -0.50001, acc -0.3") == [(-1, {"loss": -0.5})]


@pytest.mark.parametrize("line", ["loss information 3", "loss-5", "loss nano 5"])
def test_word_that_begins_like_a_number_is_none(line):
    assert find([r"loss=loss ([0-9.]+)"], line) == []


def test_sign_and_exponent_of_the_expression_itself_count():
    assert find([r"loss=loss -([0-9.]+)"], "loss -0.5") == [(None, {"loss": 0.5})]
    assert find([r"power=1e-([0-9]+)"], "1e-05") == [(None, {"power": 5})]


def test_text_that_is_no_number_is_no_value():
    assert find([r"loss=loss (\S+)"], "loss is high") == []


def test_parts_of_a_progress_bar_are_lines():
    line = "\r  0%|  | 0/2 [loss=0.9]\r 50%|# | 1/2 [loss=0.5]\r100%|##| 2/2 [loss=0.25]\n"
    assert [metrics["loss"] for _, metrics in find([r"loss=loss=([0-9.]+)"], line)] == [0.9, 0.5, 0.25]


def test_bar_over_epochs_keeps_equal_values_of_different_epochs():
    written = io.StringIO()
    values = [0.91, 0.92, 0.92, 0.92, 0.94, 0.94]
    for value in (bar := tqdm(values, file=written, mininterval=0)):
        bar.set_postfix(acc=value)
    found = find([r"acc=acc=([0-9.]+)"], *written.getvalue().splitlines())
    assert [metrics["acc"] for _, metrics in found] == values


def test_bars_of_two_epochs_are_told_apart_by_their_numbers():
    lines = [f"Epoch {epoch}  33%|###  | 1/3 [00:0{epoch}<00:02, 1.00it/s, loss=0.5]" for epoch in range(3)]
    lines += [f"Epoch {epoch} 2it [00:0{epoch}, 1.00it/s, loss=0.5]" for epoch in range(3)]
    assert len(find([r"loss=loss=([0-9.]+)"], *lines)) == 6


@pytest.mark.parametrize("total", [3, None])
@pytest.mark.parametrize("unit", ["it", " batch", "B"])
@pytest.mark.parametrize("update_first", [True, False])
def test_bar_that_is_drawn_again_gives_its_values_once(total, unit, update_first):
    written = io.StringIO()
    for epoch in range(2):
        with tqdm(total=total, desc=f"Epoch {epoch}", unit=unit, file=written, mininterval=0) as bar:
            for loss in (0.9, 0.5, 0.25):
                if update_first:
                    bar.update()
                bar.set_postfix(loss=loss)
                if not update_first:
                    bar.update()
    found = find([r"loss=loss=([0-9.]+)"], *written.getvalue().splitlines())
    assert [metrics["loss"] for _, metrics in found] == [0.9, 0.5, 0.25] * 2


@pytest.mark.parametrize("head", ["[07:54:45, epoch {}]", "[07:54:45, {}/5]", "[07:54] [{}]", "[00:0{}, 2 of 5]"])
def test_equal_values_of_lines_that_begin_with_a_clock_count(head):
    lines = [f"{head.format(epoch)} acc=0.5" for epoch in range(1, 6)]
    assert len(find(["acc=acc=([0-9.]+)"], *lines)) == 5


def test_colors_are_removed_before_a_pattern_is_applied():
    assert find(["loss=^loss: ([0-9.]+)$"], "\x1b[1;32mloss\x1b[0m: \x1b[31m0.5\x1b[K") == [(None, {"loss": 0.5})]


def test_json_line_gives_its_numbers_and_its_step():
    line = '{"epoch": 3, "val": {"loss": 0.5}, "name": "run", "done": false}'
    assert find(["val/loss=json"], line) == [(3, {"val/loss": 0.5, "done": 0})]


def test_json_line_may_follow_the_head_of_a_log():
    assert find(["loss=json"], 'INFO 12:00 main: {"loss": 0.5, "step": 7}') == [(7, {"loss": 0.5})]


@pytest.mark.parametrize("line", ["{'loss': 0.5}", '{"loss": 0.5', '{"accuracy": 0.5}', '{"loss": "high"}', "{" * 9999])
def test_other_lines_are_no_json_with_the_metric(line):
    assert find(["loss=json"], line) == []


@given(st.text())
def test_no_line_breaks_the_reader(line):
    assert all(
        isinstance(found, Measurement) for found in OutputPatterns(["a=json", "b=(.)", "c=(?P<step>.)(.)"]).find(line)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loss", "must be like NAME=REGEX or NAME=json"),
        ("=loss (.)", "must be like NAME=REGEX"),
        ("loss=", "must be like NAME=REGEX"),
        ("loss=loss (", "must have a regular expression"),
        ("loss=loss .*", "must have parentheses"),
        (r"loss=(?P<step>\d+)", "must have parentheses"),
    ],
)
def test_wrong_pattern_is_refused_with_what_is_right(text, message):
    with pytest.raises(ValueError, match=message):
        OutputPatterns([text])
