"""What MLflow runs to load a model and to ask it. Copied into the model, beside the packages that it imports."""

from pathlib import Path
from typing import Any

import numpy as np
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel

from trainables.training.predictor import Predictor


class TrialModel(PythonModel):
    """The best trial of a search."""

    def load_context(self, context: Any) -> None:
        """Build the task. Weights that are not what was saved are refused."""
        self.predictor = Predictor.load(Path(context.artifacts["weights"]) / "weights.pt")

    # A dict of arrays or a data frame comes as well. MLflow takes other types than this one for a schema of their own,
    # and warns where there are none.
    def predict(self, context: Any, model_input: np.ndarray, params: Any = None) -> Any:
        """What the task predicts."""
        return self.predictor(model_input)


set_model(TrialModel())
