from searchlight.search.reporting.html.sections.learning_curves import build
from tests.search.reporting.html.page_studies import many, search, trial


def test_few_traces_show_all_curves_and_the_best_stands_out():
    made = many(200, epochs=20)
    (figure,) = build(made).figures
    assert len(figure.data) <= 11
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    reported = sum(len(trial.intermediate_values) for trial in made.trials)
    assert sum(value is not None for trace in lines for value in trace.y) >= reported
    *_, best = figure.data
    assert best.name.startswith("best (trial")
    assert best.line.width > 2 * max(trace.line.width for trace in lines if trace is not best)
    faded = {trace.name: trace.opacity for trace in lines}
    assert faded["pruned"] < faded["completed"] < 1


def test_lengths_of_curves_are_told_and_one_report_is_a_dot():
    told = build(search([trial(0, scores=[0.1, 0.2, 0.3]), trial(1, "pruned", [0.15]), trial(2, "pruned", [0.1, 0.2])]))
    assert "3 trials reported; 1 of them reached the last epoch, 3." in told.says
    assert "2 trials stopped early: 1 after epoch 1 and 1 after epoch 2." in told.says
    assert any("markers" in trace.mode and 0.15 in trace.y for trace in told.figures[0].data)


def test_single_reports_alone_are_no_curves():
    assert build(search([trial(0, scores=[0.1]), trial(1, "failed")])) is None
    assert build(search([])) is None


def test_axis_of_few_epochs_labels_whole_ones_alone():
    (figure,) = build(search([trial(0, scores=[0.1, 0.2, 0.3])])).figures
    assert figure.layout.xaxis.dtick == 1
    (figure,) = build(many(3, epochs=20)).figures
    assert figure.layout.xaxis.dtick is None
