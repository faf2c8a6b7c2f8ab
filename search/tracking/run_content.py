"""What the runs of a search hold in MLflow, within its limits and as its UI shows them best."""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from optuna.distributions import json_to_distribution

from searchlight.search.execution.options import BudgetOptions
from searchlight.search.option import list_options
from searchlight.search.samplers.options import SamplerOptions
from searchlight.search.schedulers.options import SchedulerOptions
from searchlight.search.space.objectives import Objective
from searchlight.search.space.search_space import Parameter
from searchlight.search.study.datasets import Told

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

METRICS, PARAMS = 800, 100  # per call, below MLflow's limits; the next limits are in characters
LONGEST_PARAM = 6000
LONGEST_TAG = 5000
LONGEST_DIGEST = 36
LONGEST_EXPERIMENT = 256  # the column of MLflow's databases; MLflow itself allows 500
LONGEST_METRIC = 250 - len("confirmed/_high")  # what MLflow allows, without what is put around an objective
CONTEXT = "mlflow.data.context"  # the tag of a data set's use in MLflow's UI
NOT_IN_A_KEY = re.compile(r"[^\w\-. :/]")  # characters that MLflow refuses in metric names
AMONG_TRAININGS = {"workflowType": "machine_learning"}  # without it, the UI shows a run as an evaluation of an LLM
FIRST = "Objective"  # the UI sorts sections of charts by name, capitals first, and those without a section come last
PARENT_GROUPS = ("Budget", "Scheduler", "Sampler")  # groups of options that are parameters of the parent run
PARENT_OPTIONS = [
    option
    for options in (BudgetOptions, SchedulerOptions, SamplerOptions)
    for option in list_options(options)
    if option.group in PARENT_GROUPS or option.schedulers
]
CONFIRM = "confirm"  # the tag purpose of a run that confirms a config under a new seed


def find_refused_names(experiment: str, objectives: Sequence[Objective]) -> Iterator[str]:
    """Yield a line for each name that MLflow would refuse together with the trials."""
    if (length := len(experiment)) > LONGEST_EXPERIMENT:
        given = f"{length}: {experiment[:20]}..."
        yield f"--experiment must have at most {LONGEST_EXPERIMENT} characters for MLflow, but got {given}"
    for metric in (objective.metric for objective in objectives):
        if (length := len(metric)) > LONGEST_METRIC:
            given = f"{length}: {metric[:20]}..."
            yield f"--objective must have at most {LONGEST_METRIC} characters for MLflow, but got {given}"
        elif posixpath.normpath(f"best/{metric}") != f"best/{metric}":
            yield f"--objective must be like val/loss for MLflow, without empty parts, '.' or '..', but got {metric!r}."


def build_search_params(config: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, str]:
    """Return the space, budget, scheduler and sampler of a search as texts. Omit options without a value."""
    known = [
        option.key for option in PARENT_OPTIONS if not option.schedulers or config["scheduler"] in option.schedulers
    ]
    params = {"epochs": about["fixed"].get("epochs"), **{key: config.get(key) for key in known}}
    # Prefixed, since the UI would otherwise mix these texts with the trials' values.
    space = {f"space/{name}": json_to_distribution(text) for name, text in about["searched"].items()}
    params |= {name: Parameter(name, distribution, {}) for name, distribution in space.items()}
    return {name: str(value)[:LONGEST_PARAM] for name, value in params.items() if value not in (None, "", [], {})}


def build_version_tags(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of the code version. MLflow's own tag, which the UI shows, must be a whole commit."""
    if not environment:
        return {}
    commit = environment["code"].removesuffix("-dirty")
    own = {"mlflow.source.git.commit": commit} if re.fullmatch("[0-9a-f]{40,64}", commit) else {}
    return {"code_version": environment["code"], "searchlight_version": environment["searchlight"], **own}


def to_dataset_inputs(datasets: Sequence[Told]) -> "dict[tuple[str, str], DatasetInput]":
    """Return MLflow's inputs of data sets, by name and digest: a run has one input for all uses."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    uses: dict[tuple[str, str], list[str]] = {}
    for data in datasets:
        uses.setdefault((data["name"], data["digest"][:LONGEST_DIGEST]), []).append(data["use"])
    sources = {(data["name"], data["digest"][:LONGEST_DIGEST]): data["source"] for data in datasets}
    return {
        key: DatasetInput(Dataset(*key, *_parse_source(sources[key])), [InputTag(CONTEXT, ", ".join(used))])
        for key, used in uses.items()
    }


def _parse_source(text: str) -> tuple[str, str]:
    """Return the type of a source, and the source as JSON."""
    if not text:
        return "code", json.dumps({"tags": {}})
    if text.startswith(("http://", "https://")):
        return "http", json.dumps({"url": text})
    return "local", json.dumps({"uri": text})


def add_link(note: str, experiment_id: str, search_id: str, best: Objective) -> str:
    """Return `note` with a link to the trials at the start, where the UI does not fold it.

    The linked view sorts by a metric and therefore omits the parent, whose other parameters would be compared.
    """
    query = {
        **AMONG_TRAININGS,
        "searchFilter": f"tags.search_id = '{search_id}' and tags.trial_id LIKE '%'",
        "orderByKey": f"metrics.`{NOT_IN_A_KEY.sub('_', f'best/{best.metric}')}`",
        "orderByAsc": str(best.mode == "min").lower(),
    }
    link = f"#/experiments/{experiment_id}/runs?{urlencode(query, quote_via=quote)}"
    return f"[Compare the trials]({link}). {note}"
