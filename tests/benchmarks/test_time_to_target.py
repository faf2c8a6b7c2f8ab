"""What the comparison of whole searches takes for the choice of a side."""

from benchmarks.target_task import DEFAULTS
from benchmarks.time_to_target import as_config, choose


def test_choice_is_the_lowest_loss_reported_so_far():
    first, second = DEFAULTS, {**DEFAULTS, "lr": 0.01}
    reports = [(12.0, first, 0.5), (14.0, second, 0.4), (13.0, first, 0.45), (15.0, first, 0.42), (16.0, first, 0.3)]
    found = choose([{"at": at, "config": config, "loss": loss} for at, config, loss in reports], start=10.0)
    assert found == [(2.0, as_config(first)), (4.0, as_config(second)), (6.0, as_config(first))]
