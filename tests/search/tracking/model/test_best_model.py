import json
import os
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version

import pytest
from mlflow.tracking import MlflowClient

from searchlight.search.formatting import format_command
from searchlight.search.tracking.errors import ModelError
from searchlight.search.tracking.model.best_model import log_best
from searchlight.search.tracking.model.log_model import pin_requirements
from searchlight.search.tracking.options import parse_model_name
from searchlight.trainables import checkpoint
from searchlight.trainables.filesystem.paths import parse_path
from searchlight.trainables.training.predictor import Predictor
from searchlight.trainables.training.trainer import TrialTrainer
from tests.conftest import ROOT, TASKS
from tests.search.objectives import VAL_LOSS
from tests.search.stored_studies import Search, replayed

INPUTS = [[0.5, -1.0, 2.0, 0.0], [1.0, 1.0, -1.0, 3.0]]

# Runs with neither the repository nor the search's folder on its path.
ASKS = f"""
import json, sys
from pathlib import Path
import mlflow, numpy as np
from mlflow.artifacts import download_artifacts

folder = download_artifacts("models:/toy model/1")
model = mlflow.pyfunc.load_model(folder)
answers = model.predict(np.array({INPUTS}, dtype=np.float32)).tolist()
foreign = [name for name in ("search", "ray", "optuna") if name in sys.modules]
weights = Path(folder, "artifacts/weights/weights.pt")
content = bytearray(weights.read_bytes())
content[len(content) // 2] ^= 1
weights.write_bytes(content)
try:
    refused = mlflow.pyfunc.load_model(folder)
except Exception as error:
    refused = str(error)
told = {{"inputs": str(model.metadata.signature.inputs), "example": model.input_example.shape}}
print(json.dumps({{"answers": answers, "foreign": foreign, "refused": refused, "path": sys.path, **told}}))
"""


class Searched(Search):
    """A search over toy.py with one trial."""

    def __init__(self, storage, name="one", experiment="Toy"):
        super().__init__(storage, name, objective=VAL_LOSS, task=f"{TASKS / 'toy.py'}:Toy", experiment=experiment)
        self.folder = self.config.local_path
        (self.folder / "code").mkdir()
        for file in ("toy.py", "beside.py"):
            shutil.copy(TASKS / file, self.folder / "code")
        self.begin(precision="bf16", inner={"width": 8})

    def complete(self, path):
        """The trial is completed with the checkpoint at `path`."""
        self.report(0, 1, 0.25, checkpoint=path and str(path))
        self.end(0, "completed")
        self.store.close()


@pytest.fixture(scope="module")
def searched(tmp_path_factory, empty_mlflow_db):
    """A search whose best trial was trained by the task itself, and its parent run in MLflow, which has ended."""
    made = Searched(tmp_path_factory.mktemp("runs"))
    sys.path.insert(0, str(TASKS))
    try:
        from toy import Toy, ToyConfig

        training = TrialTrainer(Toy(ToyConfig(precision="bf16", ema_decay=0.9, epochs=2)))
        training.run_epoch()
        path = made.folder / "checkpoints" / "0" / "epoch-1.pt"
        training.save(path)
        made.answers = Predictor("toy:Toy", checkpoint.load(path), "cpu")(INPUTS).tolist()
    finally:
        sys.path.remove(str(TASKS))
    made.complete(path)
    shutil.copy(empty_mlflow_db, made.config.storage)
    made.uri = f"sqlite:///{made.config.storage / 'mlflow.db'}"
    made.client = MlflowClient(tracking_uri=made.uri)
    made.experiment = made.client.create_experiment("Toy", (made.config.storage / "mlartifacts").as_uri())
    parent = made.client.create_run(made.experiment, tags={"search_id": "id of one"}, start_time=1)
    made.client.create_run(made.experiment, tags={"search_id": "id of one", "trial_id": "0"}, start_time=2)
    made.parent = parent.info.run_id
    made.client.set_terminated(made.parent, "FINISHED")
    made.model = log_best(made.folder, "toy model")
    return made


@pytest.mark.slow
def test_model_predicts_in_a_foreign_process(searched, tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PYTHON"))}
    kept |= {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}
    kept["MLFLOW_TRACKING_URI"] = searched.uri
    (searched.folder / "checkpoints").rename(searched.folder / "gone")
    try:
        command = [sys.executable, "-P", "-c", ASKS]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=kept)
    finally:
        (searched.folder / "gone").rename(searched.folder / "checkpoints")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["answers"] == searched.answers
    assert told["inputs"] == "[Tensor('float32', (-1, 4))]"
    assert told["example"] == [8, 4]
    assert told["foreign"] == []
    assert not {str(ROOT), str(TASKS), str(searched.folder / "code")} & {*told["path"]}
    assert "Warning" not in done.stderr
    assert "weights.pt must have the SHA-256" in told["refused"]
    assert "it is corrupt" in told["refused"]


def test_model_belongs_to_the_parent_run_that_stays_ended(searched):
    assert searched.model == "models:/toy model/1"
    run = searched.client.get_run(searched.parent)
    assert run.info.status == "FINISHED"
    assert run.data.params == {}
    (output,) = run.outputs.model_outputs
    logged = searched.client.get_logged_model(output.model_id)
    assert logged.experiment_id == searched.experiment
    assert logged.params == {"precision": "bf16", "inner.width": "8"}
    version = searched.client.get_model_version("toy model", "1")
    assert version.run_id == searched.parent
    assert version.tags == {"search": "one", "trial_id": "0", "objective": "val/loss", "value": "0.25"}


def test_same_checkpoint_is_no_second_model(searched):
    before = len(searched.client.search_logged_models([searched.experiment]))
    assert log_best(searched.folder, "toy model") == searched.model
    (version,) = searched.client.search_model_versions("name = 'toy model'")
    assert int(version.version) == 1
    logged = searched.client.get_run(searched.parent).outputs.model_outputs[0].model_id
    assert log_best(searched.folder) == f"models:/{logged}"
    assert len(searched.client.search_logged_models([searched.experiment])) == before


def test_search_that_mlflow_lacks_is_refused_with_a_command(tmp_path, searched):
    other = Searched(tmp_path, "other", experiment="Elsewhere")
    other.complete(searched.folder / "checkpoints" / "0" / "epoch-1.pt")
    with pytest.raises(ModelError) as told:
        log_best(other.folder, "toy model")
    assert str(told.value) == (
        "the best checkpoint is no model in MLflow: MLflow has no run of this search in experiment 'Elsewhere'. "
        f"Send the search to MLflow first: {format_command('report')} other --storage {tmp_path} --replay "
        "--register 'toy model'"
    )


def test_checkpoint_in_a_bucket_becomes_a_model(searched, s3):
    other = Searched(searched.config.storage, "bucket")
    path = parse_path(s3) / "bucket" / "checkpoints" / "0" / "epoch-1.pt"
    checkpoint.link(searched.folder / "checkpoints" / "0" / "epoch-1.pt", path)
    other.complete(path)
    searched.client.create_run(searched.experiment, tags={"search_id": "id of bucket"})
    assert log_best(other.folder, "bucket model") == "models:/bucket model/1"
    checkpoint.delete(path)
    with pytest.raises(ModelError, match=rf"trial 0 has no checkpoint of a task, but {path}"):
        log_best(other.folder, "bucket model")


def test_search_without_a_checkpoint_has_no_model(tmp_path):
    nothing, function = Searched(tmp_path, "nothing"), Searched(tmp_path, "function")
    nothing.store.close()
    with pytest.raises(ModelError, match=r"no trial was completed\.$"):
        log_best(nothing.folder)
    function.complete(None)
    with pytest.raises(ModelError, match="trial 0 has no checkpoint of a task, but None"):
        log_best(function.folder)


def test_process_that_is_late_or_dies_is_refused(searched, monkeypatch):
    monkeypatch.setattr("searchlight.search.tracking.model.best_model.TIMEOUT_S", 0.1)
    with pytest.raises(ModelError, match=r"making it took more than 0\.1 s\. Try again: .*searchlight report one "):
        log_best(searched.folder)
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    monkeypatch.setattr("searchlight.search.tracking.model.best_model.TIMEOUT_S", 60.0)
    with pytest.raises(ModelError, match=r"the process that makes it ended with code 1: it said nothing\. Try again: "):
        log_best(searched.folder)


def test_model_name_must_fit_a_registry():
    for name in ("a", "My model_2.1-b", "main.ml.größe", "x" * 200):
        assert parse_model_name(name) == name
    for name in ("a/b", "a:b", "", "../a", ".", "-a", "a" * 201, "50%"):
        with pytest.raises(ValueError, match="must be a name of letters"):
            parse_model_name(name)


def test_imports_are_pinned_to_public_installed_versions(tmp_path):
    (tmp_path / "task.py").write_text("import os\nimport numpy.linalg\ndef late():\n    from yaml import safe_load\n")
    (tmp_path / "other.py").write_text("import task\nfrom . import mlflow\nimport not_installed_at_all\n")
    pins = [f"PyYAML=={version('pyyaml')}", f"numpy=={version('numpy')}"]
    assert pin_requirements(tmp_path.glob("*.py")) == sorted(pins)
    (tmp_path / "task.py").write_text("import torch\n")
    assert pin_requirements([tmp_path / "task.py"]) == [f"torch=={version('torch').partition('+')[0]}"]


TWO = """
import torch
from searchlight.trainables.task import Task, TaskConfig, searchable


class TwoConfig(TaskConfig):
    lr: float = searchable(0.5, low=0.0, high=1.0)


class Two(Task[TwoConfig]):
    objective = "val/loss"

    def build(self):
        for name in ("encoder", "decoder"):
            self.modules[name] = torch.nn.Linear(4, 4)
        parameters = [parameter for module in self.modules.values() for parameter in module.parameters()]
        self.optimizers = {"all": torch.optim.SGD(parameters, lr=self.config.lr)}

    def train_batches(self, epoch):
        yield (torch.zeros(8, 4),)

    def loss(self, batch):
        return self.modules["decoder"](self.modules["encoder"](batch[0])).square().mean(), 8

    def evaluate(self):
        return {"val/loss": 1.0}
"""
PREDICT = """
    def predict(self, inputs):
        return self.modules["decoder"](self.modules["encoder"](inputs))
"""


@pytest.mark.slow
def test_command_after_an_error_of_the_task_takes_the_new_code(tmp_path, mlflow_db, monkeypatch):
    path = tmp_path / "mine" / "two.py"
    path.parent.mkdir()
    path.write_text(TWO)
    search = Search(tmp_path, "ended", objective=VAL_LOSS, task=f"{path}:Two", experiment="Two", trials=1)
    folder = search.config.local_path
    shutil.copytree(path.parent, folder / "code")
    monkeypatch.syspath_prepend(str(path.parent))
    from two import Two, TwoConfig

    training = TrialTrainer(Two(TwoConfig(epochs=1)))
    training.run_epoch()
    training.save(folder / "checkpoints" / "0" / "epoch-1.pt")
    number = search.begin(lr=0.5, epochs=1)
    search.report(number, 1, 1.0, checkpoint=str(folder / "checkpoints" / "0" / "epoch-1.pt"))
    search.end(number, "completed")
    assert replayed(search).exit_code == 0
    with pytest.raises(ModelError, match="Two must define predict") as told:
        log_best(folder, "two")
    path.write_text(TWO + PREDICT)
    command = shlex.split(str(told.value).partition("Correct the task, then run: ")[2])
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "models:/two/1" in done.stdout, done.stderr
    assert "two.py changed since ended last ran" in done.stderr
    assert "def predict" not in (folder / "code-1" / "two.py").read_text(), "what trained it is kept"
