"""Makes an MLflow model of a checkpoint, in a process of its own.

python -m search.tracking.model.log_model REQUEST ANSWER

The driver never loads torch; and what a fresh process can make of the task here, the one that serves it can too.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mlflow import pyfunc, set_experiment
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature, infer_signature
from mlflow.tracking import MlflowClient

from search.tracking.errors import describe_mlflow_error
from search.tracking.model.requirements import pin_requirements
from trainables import checkpoint
from trainables.filesystem.paths import parse_path
from trainables.training.predictor import Predictor

ROOT = Path(__file__).resolve().parents[3]
SERVED = Path(__file__).with_name("pyfunc.py")
PACKAGES = ("trainables", "models")


def log_model(
    reference: str,
    trained: str,
    code: Sequence[str],
    experiment: str,
    search_id: str,
    register: str,
    params: dict[str, str],
    tags: dict[str, str],
) -> dict[str, str]:
    """Log the model on the parent run of a search, unless it has it: one that is taken up may be as good as before.

    Args:
        reference: The task as "module:Class", which can be imported here.
        trained: The checkpoint.
        code: The task's file and the modules beside it; nothing of a built-in task.
        experiment: Of the run.
        search_id: The tag by which it is found.
        register: The model's name in the registry; empty: it is not put there.
        params: Of the model: the trial's config by dotted name.
        tags: Of the model, and of its version.

    Returns:
        The `uri` by which it is loaded.

    Raises:
        ValueError: The run is not there, or the task does not say what it predicts.
    """
    client = MlflowClient()
    run = _find_run(client, experiment, search_id)
    if made := _find_model(client, run, register, tags):
        return {"uri": made}
    predictor = Predictor(reference, checkpoint.load(parse_path(trained)))
    example = predictor.example()
    signature: ModelSignature = infer_signature(example, predictor(example))
    set_experiment(experiment_id=run.info.experiment_id)
    with tempfile.TemporaryDirectory(prefix="searchlight-model-") as folder:
        predictor.save(Path(folder) / "weights" / "weights.pt")
        # Unlike pyfunc.log_model, it takes a run that has ended, and leaves it so.
        info = Model.log(
            artifact_path=None,
            name="best",
            flavor=pyfunc,
            flavor_name="pyfunc.ModelFromCode",
            run_id=run.info.run_id,
            registered_model_name=register or None,
            params=params,
            tags=tags,
            python_model=str(SERVED),
            artifacts={"weights": str(Path(folder) / "weights")},
            code_paths=[*(str(ROOT / package) for package in PACKAGES), *code],
            signature=signature,
            input_example=example,
            pip_requirements=_collect_requirements([Path(path) for path in code]),
        )
    version = info.registered_model_version
    return {"uri": f"models:/{register}/{version}" if register else info.model_uri}


def _find_run(client: MlflowClient, name: str, search_id: str) -> Run:
    """The parent run of a search, which began with its first trial."""
    experiment = client.get_experiment_by_name(name)
    ids, query = [experiment.experiment_id] if experiment else [], f"tags.search_id = '{search_id}'"
    runs = client.search_runs(ids, query, order_by=["attributes.start_time ASC"]) if ids else []
    found: list[Run] = [run for run in runs if "trial_id" not in run.data.tags]
    if not found:
        raise ValueError(f"MLflow has no run of this search in experiment {name!r}.")
    return found[0]


def _find_model(client: MlflowClient, run: Run, register: str, tags: dict[str, str]) -> str | None:
    """The URI of a model of `run` that has these `tags`: it was made of the same checkpoint."""
    if register:
        versions = client.search_model_versions(f"name = '{register}'")
        found = [version for version in versions if version.run_id == run.info.run_id]
        return next((f"models:/{register}/{each.version}" for each in found if tags.items() <= each.tags.items()), None)
    models = client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run.info.run_id}'")
    return next((model.model_uri for model in models if tags.items() <= model.tags.items()), None)


def _collect_requirements(own: Sequence[Path]) -> list[str]:
    """Of the task's files, and of those of ours that are needed: the workers' Ray is not."""
    ours = [
        Path(module.__file__)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in PACKAGES and module.__file__
    ]
    files = [file for path in own for file in ([path] if path.is_file() else path.rglob("*.py"))]
    return pin_requirements([SERVED, *ours, *files])


def _format_error(error: BaseException) -> str:
    if isinstance(error, MlflowException):
        return f"MLflow {describe_mlflow_error(error).rstrip('.')}."
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500].rstrip('.')}."


def main(request: Path, answer: Path) -> None:
    """Do what is asked for in JSON, and answer so: with the `uri` of the model, or the `error`."""
    try:
        told = log_model(**json.loads(request.read_text(encoding="utf-8")))
    except (Exception, SystemExit) as error:  # the task's own code may raise anything, and MLflow does
        told = {"error": _format_error(error)}
    answer.write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main(*(Path(argument).absolute() for argument in sys.argv[1:]))
