from rich.console import Console

from searchlight.search.analysis.ranking import trial_rows
from searchlight.search.reporting.console.tables import build_table
from tests.search.objectives import VAL_SCORE


def test_table_ranks_by_the_best_report(trials):
    console = Console(width=120)
    with console.capture() as captured:
        console.print(build_table(trial_rows(trials, [VAL_SCORE])))
    lines = captured.get().splitlines()
    assert [int(line.split()[0]) for line in lines[1:]] == [4, 2, 1, 0, 3]
    assert lines[-1].split()[1:4] == ["failed", "0", "-"]
