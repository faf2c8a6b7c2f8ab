"""Elastic weight consolidation: a penalty on changes of weights that earlier tasks need."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from searchlight.models.liquid.continual.quadratic import Tensors, copy_full, copy_matching, pull


class EWC:
    """Online EWC with one anchor, the latest optimum, and the sum of all Fishers.

    EWC is from Kirkpatrick et al. 2017 (PNAS 114, 3521, arXiv 1612.00796), the single anchor from Huszar 2018
    (arXiv 1712.03847), and the decay from Schwarz et al. 2018 (Progress & Compress, arXiv 1805.06370).

    Args:
        parameters: The parameters to consolidate, by name.
        strength: lambda. It must be searched over many decades.
        decay: gamma, the factor of earlier Fishers at each consolidation, 0..1.
    """

    def __init__(self, parameters: Mapping[str, Parameter], strength: float, decay: float = 1.0) -> None:
        self.strength = strength
        self.decay = decay
        self._parameters = dict(parameters)
        self._fisher: Tensors = {}
        self._anchor: Tensors = {}

    def compute_penalty(self) -> Tensor:
        """Return `strength / 2 * sum F * (theta - theta*)^2`, a scalar in fp32; 0 before the first consolidation.

        Add it to a loss once, independent of the number of samples.
        """
        parameters = list(self._parameters.values())
        if not self._fisher or not self.strength:
            return copy_full(parameters[0]).new_zeros(())
        return pull(parameters, list(self._anchor.values()), list(self._fisher.values()), self.strength / 2)

    def consolidate(self, fisher: Mapping[str, Tensor]) -> None:
        """Anchor the parameters at their present values, at the end of a task.

        Args:
            fisher: The diagonal for this task by name, a mean over its samples, the same on all ranks.

        Raises:
            ValueError: Names or shapes differ from the parameters, or an entry is negative or not finite.
        """
        new = copy_matching("fisher", fisher, self._parameters)
        for name, values in new.items():
            if not bool(((values >= 0) & values.isfinite()).all()):
                raise ValueError(f"fisher of {name} must be finite and at least 0, but got another entry. Has it NaNs?")
        # F <- gamma F + F_task and theta* <- theta: Laplace's approximation of the posterior after all tasks,
        # -ln p(theta) = 1/2 sum F (theta - theta*)^2 up to a constant, is the prior of the next task. Penalties around
        # the optima of all tasks would count early tasks several times, as later optima contain them (Huszar 2018).
        self._fisher = {
            name: self.decay * self._fisher[name] + values if self._fisher else values for name, values in new.items()
        }
        self._anchor = {name: copy_full(parameter) for name, parameter in self._parameters.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"fisher": dict(self._fisher), "anchor": dict(self._anchor)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state, whose names and shapes must be those of the parameters."""
        if not state["fisher"]:
            self._fisher, self._anchor = {}, {}
            return
        fisher = copy_matching("fisher", state["fisher"], self._parameters)
        self._anchor = copy_matching("anchor", state["anchor"], self._parameters)
        self._fisher = fisher
