"""The code that MLflow runs to load a model and to predict. Copied into the model, next to its packages."""

from pathlib import Path
from typing import Any

import numpy as np
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel

from searchlight.trainables.training.predictor import Predictor


class TrialModel(PythonModel):
    """The best trial of a search, as an MLflow model."""

    def load_context(self, context: Any) -> None:
        """Build the task. Raise if the weights differ from the saved ones."""
        self.predictor = Predictor.load(Path(context.artifacts["weights"]) / "weights.pt")

    # Inputs may also be a dict of arrays or a data frame. MLflow derives a schema from other annotations than this one,
    # and warns without any.
    def predict(self, context: Any, model_input: np.ndarray, params: Any = None) -> Any:
        """Return the predictions of the task."""
        return self.predictor(model_input)


set_model(TrialModel())
