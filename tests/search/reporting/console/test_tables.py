from optuna.trial import create_trial
from rich.console import Console

from search.config.objectives import Objective
from search.reporting.console.tables import build_trial_table

SCORE = [Objective("val/score", "max")]


def test_the_table_ranks_by_the_best_report_and_puts_the_unranked_last(trials):
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(build_trial_table(trials, SCORE))
    lines = console.export_text().splitlines()
    assert [int(line.split()[0]) for line in lines[1:]] == [4, 2, 1, 0, 3]
    assert lines[-1].split()[1:4] == ["failed", "0", "-"]


def test_the_table_has_the_gpu_seconds_of_all_epochs():
    reports = {f"report/{epoch}": {"metrics": {"val/score": 0.1}, "gpu_seconds": 0.5} for epoch in (1, 2)}
    trial = create_trial(value=0.1, intermediate_values={1: 0.1, 2: 0.1}, user_attrs=reports)
    trial.number = 0
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(build_trial_table([trial], SCORE))
    header, line = console.export_text().splitlines()
    assert dict(zip(header.split(), line.split(), strict=True))["GPU-s"] == "1"


def test_small_values_are_told_apart_in_the_table():
    trials = [create_trial(value=loss, intermediate_values={1: loss}) for loss in (3e-7, 2e-6)]
    for number, trial in enumerate(trials):
        trial.number = number
    console = Console(width=120)
    with console.capture() as captured:
        console.print(build_trial_table(trials, [Objective("loss", "min")]))
    assert [line.split()[4] for line in captured.get().splitlines()[1:]] == ["3e-07", "2e-06"]
