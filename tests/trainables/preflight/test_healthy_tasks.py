"""Audit healthy tasks: none of them has an error, and warnings are those that are true."""

import pytest

from tests.trainables.preflight.faulty_tasks import Small
from tests.trainables.preflight.healthy_tasks import HEALTHY, TimeFirst
from tests.trainables.preflight.test_faulty_tasks import audit
from tests.trainables.preflight.user_mistakes import Classifier, SoftmaxTwice

# An expert that no sample was given, the output of a network that starts at what its adapter leaves, and an LSTM in
# bf16 on a CPU without AVX-512.
ALLOWED = {"unused-module", "mode-without-gain", "mode-unsupported"}


@pytest.mark.parametrize("task", [*HEALTHY, Classifier, SoftmaxTwice], ids=lambda task: task.__name__)
def test_healthy_model_has_no_error(task):
    found = audit(task, accumulates=True, modes=["fp32", "bf16"]).findings
    assert not [str(finding) for finding in found if finding.severity == "error"]
    assert not [str(finding) for finding in found if finding.severity == "warning" and finding.name not in ALLOWED]


def test_weight_that_is_right_for_samples_in_the_second_dimension_is_a_warning():
    (found,) = (each for each in audit(TimeFirst, accumulates=True).findings if each.severity != "note")
    assert (found.name, found.severity) == ("weight-is-not-the-mean", "warning")


def test_healthy_task_has_no_finding():
    found = audit(Small, workers=2, accumulates=True).findings
    assert not found, [str(finding) for finding in found]
