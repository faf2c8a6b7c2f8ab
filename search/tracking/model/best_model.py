"""Logs the best checkpoint of a search as an MLflow model on its parent run, in a separate process."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from searchlight.search.analysis.confirmed_best import confirm, find_confirmed_best
from searchlight.search.errors import UsageError
from searchlight.search.folder.working_copy import downloaded_copy
from searchlight.search.formatting import log_model_command, replay_command, resume_command
from searchlight.search.study.record import SearchRecord, load_search
from searchlight.search.study.trial import get_best_value
from searchlight.search.task_source import find_copy, get_module_name, load_task_source
from searchlight.search.tracking.errors import ModelError
from searchlight.search.tracking.model import ModelRequest
from searchlight.search.tracking.options import TrackingOptions
from searchlight.search.tracking.run_content import LONGEST_PARAM
from searchlight.search.tracking.uri import URI, prepare_process, resolve_tracking_uri, tracking_environment
from searchlight.trainables.filesystem.paths import StoragePath, parse_path
from searchlight.trainables.flatten import flatten
from searchlight.trainables.registry import link_modules

TIMEOUT_S = 900.0  # building a task may load its data


def log_best(place: StoragePath, register: str = "") -> str:
    """Log the best checkpoint of the search at `place` and return its URI. Register it if `register` is not empty.

    Raises:
        ModelError: The model could not be logged. The search is unchanged.
    """
    prepare_process()
    try:
        with downloaded_copy(place) as folder:
            return _run_log_model(*_build_request(load_search(place), place, folder, register))
    except (ModelError, UsageError, OSError) as error:
        remedy = _format_remedy(getattr(error, "cause", ""), place, register)
        raise ModelError(f"the best checkpoint is no model in MLflow: {error}{remedy}") from error


def _format_remedy(cause: str, place: StoragePath, register: str) -> str:
    """Return a sentence with the command that works after an error of this `cause`, or ""."""
    if cause == "trial":
        return ""
    if cause == "task":  # the model uses the code that trained it, which only a resume replaces
        return f" Correct the task, then run: {log_model_command(place, register or 'MODEL', resume_command)}"
    if cause == "run":
        return f" Send the search to MLflow first: {log_model_command(place, register, replay_command)}"
    return f" Try again: {log_model_command(place, register)}"


def _build_request(searched: SearchRecord, place: StoragePath, folder: Path, register: str) -> tuple[ModelRequest, str]:
    """Return the request for `searchlight.search.tracking.model.log_model`, and the tracking URI."""
    best = find_confirmed_best(searched, confirm(searched))
    if best is None:
        raise ModelError("no trial was completed.", "trial")
    if best.checkpoint is None or not parse_path(best.checkpoint).is_file():
        raise ModelError(f"trial {best.trial_id} has no checkpoint of a task, but {best.checkpoint}.", "trial")
    task: str = searched.about["config"]["task"]
    config = TrackingOptions.from_stored(searched.about["config"], place)
    tracking_uri, _ = resolve_tracking_uri(config, tracking_environment(searched.about))
    path, _, name = task.rpartition(":")
    code = folder / "code"  # earlier versions made none if the search ran on an existing cluster
    if path and (copy := find_copy(code, Path(path))):
        reference, modules = f"{get_module_name(copy, code)}:{name}", sorted(code.iterdir())
    else:
        source = load_task_source(task)
        reference, modules = source.reference, [*source.modules.values()]
    tags = {"search": place.name, "trial_id": best.trial_id, "objective": searched.objective.metric}
    tags |= {"value": best.value} if best.run is None else _build_run_tags(searched, best.run)
    request = ModelRequest(
        reference=reference,
        trained=best.checkpoint,
        code=[str(module) for module in modules if module.name != "__pycache__"],
        experiment=config.experiment,
        search_id=searched.about["id"],
        register=register,
        params={key: str(value)[:LONGEST_PARAM] for key, value in flatten(best.config).items()},
        tags={key: str(value) for key, value in tags.items()},
    )
    return request, tracking_uri


def _build_run_tags(searched: SearchRecord, number: int) -> dict[str, Any]:
    """Return the tags of a model that a confirming run trained, with the value of that run."""
    run = next(run for run in searched.confirming_runs if run.number == number)
    return {"value": get_best_value(run, searched.objective), "confirming_run": number}


def _run_log_model(request: ModelRequest, tracking_uri: str) -> str:
    """Log the model in a separate process and return its URI."""
    with tempfile.TemporaryDirectory(prefix="searchlight-") as folder:
        code = Path(request.code[0]).parent if request.code else Path(folder, "code")
        links = link_modules(Path(folder, "modules"), code)
        paths = [str(links), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {**os.environ, URI: tracking_uri, "PYTHONPATH": os.pathsep.join(paths)}
        asked, answered = Path(folder, "request.json"), Path(folder, "answer.json")
        asked.write_text(json.dumps(asdict(request)), encoding="utf-8")
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "searchlight.search.tracking.model.log_model", str(asked), str(answered)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                env=variables,
                cwd=folder,
                start_new_session=True,  # Ctrl-C must not reach it
            )
        except subprocess.TimeoutExpired as error:
            raise ModelError(f"making it took more than {TIMEOUT_S:g} s.") from error
        if not answered.exists():
            last = (done.stderr.splitlines() or ["it said nothing"])[-1]
            raise ModelError(f"the process that makes it ended with code {done.returncode}: {last}.")
        answer: dict[str, str] = json.loads(answered.read_text(encoding="utf-8"))
    if "error" in answer:
        raise ModelError(answer["error"], answer["cause"])
    return answer["uri"]
