from searchlight.search.reporting.html.sections.optimization_history import build
from tests.search.reporting.html.page_studies import START, search, trial


def test_progress_to_the_best_value_is_told_and_drawn():
    trials = [
        trial(0, scores=[0.2, 0.4]),
        trial(1, "pruned", [0.3], began=2.0, params={"lr": 0.02}),
        trial(2, scores=[0.5], began=30.0, params={"lr": 0.03}),
        trial(3, "pruned", [0.1], began=50.0, params={"lr": 0.04}),
    ]
    told = build(search(trials))
    assert "The first report, of trial 0, was val/score 0.2." in told.says
    assert "The best, 0.5, came after 0:40 of 1:00, from trial 2." in told.says
    assert "1 trial that started after trial 2 reported no better value; 1 of them reached its epoch 1." in told.says
    assert "better" not in told.says.replace("no better value", ""), "a first report is no measure for a last one"
    over_time, over_trials = told.figures
    assert list(over_time.data[-1].x) == [10, 12, 20, 40, 60]
    assert list(over_time.data[-1].y) == [0.2, 0.3, 0.4, 0.5, 0.5]
    assert list(over_trials.data[-1].y) == [0.4, 0.4, 0.5, 0.5, 0.5]
    assert {trace.name: list(trace.x) for trace in over_time.data[:-1]} == {"completed": [20, 40], "pruned": [12, 60]}


def test_pause_between_drivers_is_left_out_and_marked():
    trials, at = [trial(0, scores=[0.2], gang="a"), trial(1, scores=[0.5], began=4000.0, gang="b")], START.timestamp()
    told = build(search(trials, drivers=[(at, None), (at + 4000, at + 4010)]))
    assert "after 0:20 of 0:20" in told.says
    assert "The time is without 1 pause, 1:06:30 in all" in told.says
    assert [line.x0 for line in told.figures[0].layout.shapes] == [10]


def test_diverged_trials_are_shown_but_are_no_progress():
    told = build(search([trial(0, scores=[0.2]), trial(1, "diverged", [0.9], began=10.0)]))
    assert "None was better." in told.says
    assert max(told.figures[1].data[-1].y) == 0.2
    assert 0.9 in told.figures[1].data[0].y or 0.9 in told.figures[1].data[1].y
    assert build(search([trial(0, "failed"), trial(1, "diverged", [0.9])])) is None


def test_reports_without_times_have_no_figure_over_time():
    untimed = trial(0, scores=[0.2])
    del untimed.user_attrs["report/1"]["time"]
    told = build(search([untimed]))
    assert len(told.figures) == 1
    assert told.says.startswith("It is from the last trial")
