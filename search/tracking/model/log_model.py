"""Logs a checkpoint as an MLflow model, in a separate process.

python -m searchlight.search.tracking.model.log_model REQUEST ANSWER

The driver never imports torch. If this fresh process can build the task, the process that serves the model can, too.
"""

import ast
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import packages_distributions, version
from pathlib import Path

from mlflow import pyfunc, set_experiment
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature, infer_signature
from mlflow.tracking import MlflowClient

from searchlight.search.tracking.errors import describe_mlflow_error
from searchlight.search.tracking.model import ModelRequest
from searchlight.trainables import checkpoint
from searchlight.trainables.filesystem.paths import parse_path
from searchlight.trainables.registry import PACKAGE, enter_task_folder
from searchlight.trainables.training.predictor import Predictor

SERVED = Path(__file__).with_name("pyfunc.py")


class TaskError(Exception):
    """The code of the task failed."""


class NoRunError(ValueError):
    """MLflow does not have the search."""


def log_model(request: ModelRequest) -> str:
    """Log the model on the parent run of a search, unless it has one of this checkpoint. Return the model's URI.

    Raises:
        NoRunError: The run does not exist.
        TaskError: The task cannot be built, or its prediction fails.
    """
    client = MlflowClient()
    run = _find_run(client, request.experiment, request.search_id)
    if made := _find_model(client, run, request.register, request.tags):
        return made
    state = checkpoint.load(parse_path(request.trained))
    try:
        predictor = Predictor(request.reference, state)
        example = predictor.example()
        signature: ModelSignature = infer_signature(example, predictor(example))
    except (Exception, SystemExit) as error:  # the task's own code may raise anything
        raise TaskError from error
    set_experiment(experiment_id=run.info.experiment_id)
    with tempfile.TemporaryDirectory(prefix="searchlight-model-") as folder:
        predictor.save(Path(folder) / "weights" / "weights.pt")
        # Unlike pyfunc.log_model, this accepts an ended run, and does not change its status.
        info = Model.log(
            artifact_path=None,
            name="best",
            flavor=pyfunc,
            flavor_name="pyfunc.ModelFromCode",
            run_id=run.info.run_id,
            registered_model_name=request.register or None,
            params=request.params,
            tags=request.tags,
            python_model=str(SERVED),
            artifacts={"weights": str(Path(folder) / "weights")},
            code_paths=[str(_copy_package(Path(folder))), *request.code],
            signature=signature,
            input_example=example,
            pip_requirements=_collect_requirements(request),
        )
    registered = f"models:/{request.register}/{info.registered_model_version}"
    return registered if request.register else info.model_uri


def _copy_package(folder: Path) -> Path:
    """Copy to `folder` what a model needs of Searchlight: all but the search."""
    ignored = shutil.ignore_patterns("__pycache__", "search")
    return Path(shutil.copytree(PACKAGE.resolve(), folder / PACKAGE.name, ignore=ignored))


def _find_run(client: MlflowClient, name: str, search_id: str) -> Run:
    """Return the parent run of a search."""
    experiment = client.get_experiment_by_name(name)
    ids, query = [experiment.experiment_id] if experiment else [], f"tags.search_id = '{search_id}'"
    runs = client.search_runs(ids, query, order_by=["attributes.start_time ASC"]) if ids else []
    found: list[Run] = [run for run in runs if "trial_id" not in run.data.tags]
    if not found:
        raise NoRunError(f"MLflow has no run of this search in experiment {name!r}")
    return found[0]


def _find_model(client: MlflowClient, run: Run, register: str, tags: dict[str, str]) -> str | None:
    """Return the URI of a model of `run` with these `tags`, which was logged from the same checkpoint, or None."""
    if register:
        versions = client.search_model_versions(f"name = '{register}'")
        found = [version for version in versions if version.run_id == run.info.run_id]
        return next((f"models:/{register}/{each.version}" for each in found if tags.items() <= each.tags.items()), None)
    models = client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run.info.run_id}'")
    return next((model.model_uri for model in models if tags.items() <= model.tags.items()), None)


def _collect_requirements(request: ModelRequest) -> list[str]:
    """Return the requirements of the task and of our imported modules. Workers' modules need Ray.

    The package of an installed task is one of them.
    """
    own = [Path(path) for path in request.code]
    packages = (f"{PACKAGE.name}.trainables.", f"{PACKAGE.name}.models.")
    loaded = [module.__file__ for name, module in [*sys.modules.items()] if name.startswith(packages)]
    files = [file for path in own for file in ([path] if path.is_file() else path.rglob("*.py"))]
    package = request.reference.partition(":")[0].partition(".")[0]
    return pin_requirements([SERVED, *map(Path, filter(None, loaded)), *files], {package})


def pin_requirements(files: Iterable[Path], packages: Iterable[str] = ()) -> list[str]:
    """Return `name==version` of the distributions of `packages`, and of those that `files` import anywhere.

    The local part of a version such as 2.13.0+cpu is removed, since package indexes do not have it.
    """
    names = {*packages, *(name for file in files for name in _find_imports(file))}
    names -= sys.stdlib_module_names | {PACKAGE.name}
    distributions = packages_distributions()
    found = {found for name in names for found in distributions.get(name, ())}
    return sorted(f"{name}=={version(name).partition('+')[0]}" for name in found)


def _find_imports(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def main(request: Path, answer: Path) -> None:
    """Read a ModelRequest as JSON from `request`. Write the model's `uri`, or an `error` with its `cause`, to `answer`.

    The cause is one of those of a ModelError.
    """
    try:
        result = {"uri": log_model(ModelRequest(**json.loads(request.read_text(encoding="utf-8"))))}
    except TaskError as error:
        result = {"error": _format_error(error.__cause__), "cause": "task"}
    except NoRunError as error:
        result = {"error": f"{error}.", "cause": "run"}
    except MlflowException as error:
        result = {"error": f"MLflow {describe_mlflow_error(error).rstrip('.')}.", "cause": ""}
    except Exception as error:  # of a file, or any that MLflow does not wrap
        result = {"error": _format_error(error), "cause": ""}
    answer.write_text(json.dumps(result), encoding="utf-8")


def _format_error(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500].rstrip('.')}."


if __name__ == "__main__":
    enter_task_folder()
    main(*(Path(argument).absolute() for argument in sys.argv[1:]))
