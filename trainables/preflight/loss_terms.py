"""The search for terms of a loss that train no parameter."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from searchlight.trainables.preflight.findings import Finding, make_finding
from searchlight.trainables.preflight.gradients import Prober
from searchlight.trainables.preflight.observation import ObservedTrial, TermRecorder
from searchlight.trainables.update.parameters import get_parameters


def find_constant_terms(trial: ObservedTrial) -> list[Finding]:
    """Return the terms that were added to a loss and have no gradient.

    A term that changes with the weights depends on them, and its gradient was cut off. Another term is a constant.
    """
    if not trial.terms:
        return []
    prober, values = Prober(trial), list[dict[str, float]]()
    for initial in (False, True):
        recorder = TermRecorder()
        with _initial_weights(trial, initial):
            for record in trial.updates.values():
                for batch, loss in record.batches[:1]:
                    with prober.isolated(0), recorder:
                        prober.forward(loss, batch)
        values.append({term.line: term.value for term in recorder.terms})
    findings = []
    for term in trial.terms:
        now, before = values[0].get(term.line), values[1].get(term.line)
        if now is None or before is None:
            continue
        if now != before:
            figure = f"{before:.4g} with the first weights, {now:.4g} with the trained ones, and no gradient"
            findings.append(make_finding("loss-term-without-gradient", term.line, figure))
        else:
            figure = f"{now:.4g} with the first weights and with the trained ones"
            findings.append(make_finding("constant-loss-term", term.line, figure))
    return findings


@contextmanager
def _initial_weights(trial: ObservedTrial, wanted: bool) -> Iterator[None]:
    """Set the parameters to their values after `build` inside the context, if `wanted`. Restore them afterwards."""
    parameters = [p for o in trial.task.optimizers.values() for p in get_parameters(o) if id(p) in trial.initial]
    own = [p.detach().clone() for p in parameters] if wanted else []
    try:
        with torch.no_grad():
            for p in parameters if wanted else ():
                p.copy_(trial.initial[id(p)])
        yield
    finally:
        with torch.no_grad():
            for p, value in zip(parameters, own, strict=False):
                p.copy_(value)
