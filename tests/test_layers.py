"""Imports point one way: search -> trainables -> models, and downward between the packages of each."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FORBIDDEN = {
    "models": {"search", "trainables", "ray", "optuna", "mlflow"},
    "trainables": {"search", "optuna", "mlflow"},
}
# Highest first. A package may import those of lower lines, and none of its own line.
LAYERS = [
    ("search.cli", "search.task_template"),
    ("search.run", "search.report", "search.steer", "search.ui", "search.mcp"),
    ("search.experiment",),
    ("search.reporting",),
    ("search.config",),
    ("search.tracking",),
    ("search.execution", "search.analysis"),
    ("search.study",),
    ("search.steering",),
    ("search.samplers", "search.schedulers", "search.scaling"),
    ("search.command",),
    ("search.space",),
    ("search.storage",),
    ("search.folder",),
    ("search.task_source",),
    ("search.formatting", "search.errors", "search.option", "search.libraries", "search.private_api"),
    ("trainables.worker",),
    ("trainables.preflight",),
    ("trainables.training",),
    (
        "trainables.checkpoint",
        "trainables.isolation",
        "trainables.arc",
        "trainables.liquid",
        "trainables.lm",
    ),
    ("trainables.registry", "trainables.command"),
    ("trainables.task",),
    ("trainables.update",),
    (
        "trainables.context",
        "trainables.filesystem",
        "trainables.flatten",
        "trainables.ports",
        "trainables.precision",
        "trainables.ray_functions",
        "trainables.trust",
    ),
    ("trainables.private_api", "trainables.device_errors", "trainables.gpu_driver", "trainables.ranks"),
    ("trainables.cuda", "trainables.lazy_imports"),
    ("models.arc.evaluation", "models.liquid.strategy"),
    ("models.arc.policy", "models.liquid.losses", "models.liquid.task_stream"),
    ("models.arc.programs", "models.arc.prompt", "models.liquid.continual", "models.liquid.network"),
    ("models.arc.puzzles", "models.liquid.block"),
    ("models.liquid.plasticity", "models.liquid.spiking", "models.lm"),
    ("models.liquid.cells",),
    ("models.data", "models.liquid.sequence_inputs"),
]
RANK = {package: rank for rank, line in enumerate(reversed(LAYERS)) for package in line}
PRIVATE_LIBRARIES = ("ray", "optuna", "torch")
# Names of the standard library and of Jupyter, and the id of a trial of Optuna, which has no other name.
ALLOWED = {
    "_DummyThread",
    "_current_frames",
    "_exit",
    "_fields",
    "_replace",
    "_repr_html_",
    "_run_exitfuncs",
    "_run_module_as_main",
    "_shutdown",
    "_target",
    "_threads",
    "_trial_id",
    "_value_",
}
# They decide between a folder and a bucket. All others call functions of trainables/filesystem.
ASKERS = {
    "search/folder/locations.py",  # whether a search can begin there
    "search/storage/study_store.py",  # a file of records or segments
    "search/tracking/uri.py",  # whether MLflow's client can write there
    "trainables/checkpoint/directory.py",  # published by a rename or by a last upload
}
RAY_USERS = {f"trainables/worker/{name}.py" for name in ("session", "synchronization", "worker")}


def modules_imported_by(file: Path) -> set[str]:
    """Return the dotted names that `file` imports, those inside functions and under TYPE_CHECKING included."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.removeprefix("searchlight.") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} must import absolutely"
            names |= {f"{node.module}.{alias.name}".removeprefix("searchlight.") for alias in node.names}
    return names


def package_of(module: str) -> str | None:
    """Return the entry of LAYERS that `module` belongs to, or None for a library."""
    return next((package for package in RANK if module == package or module.startswith(f"{package}.")), None)


def files_of(package: str) -> list[Path]:
    files = [
        path for path in (ROOT / package).rglob("*.py") if path.parent != ROOT / package or path.stem != "__init__"
    ]
    assert files, f"{package} must have files"
    return files


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_package_imports_no_library_of_a_higher_one(package):
    wrong = {
        str(file.relative_to(ROOT)): {name.partition(".")[0] for name in modules_imported_by(file)} & FORBIDDEN[package]
        for file in files_of(package)
    }
    assert not {file: names for file, names in wrong.items() if names}


@pytest.mark.parametrize("top", ["search", "trainables", "models"])
def test_every_import_points_to_a_lower_layer(top):
    wrong = []
    for file in files_of(top):
        own = package_of(module_of(file))
        if file.name == "__init__.py" and not modules_imported_by(file):
            continue
        assert own is not None, f"{file.relative_to(ROOT)} must belong to a package of LAYERS"
        for name in modules_imported_by(file):
            other = package_of(name)
            if other is not None and other != own and RANK[other] >= RANK[own]:
                wrong.append(f"{file.relative_to(ROOT)} imports {name}")
            if other is None and name.partition(".")[0] in ("search", "trainables", "models"):
                wrong.append(f"{file.relative_to(ROOT)} imports {name}, which is in no layer")
    assert wrong == []


@pytest.mark.parametrize("top", ["search", "trainables", "models"])
def test_modules_import_each_other_in_no_cycle(top):
    modules = {module_of(file).removesuffix(".__init__"): file for file in files_of(top)}
    graph = {
        own: {name if name in modules else name.rpartition(".")[0] for name in modules_imported_by(file)} & {*modules}
        for own, file in modules.items()
    }
    while free := {module for module, imported in graph.items() if not imported & graph.keys()}:
        graph = {module: imported for module, imported in graph.items() if module not in free}
    while free := graph.keys() - set().union(*graph.values()):  # what only imports those of a cycle
        graph = {module: imported for module, imported in graph.items() if module not in free}
    assert not {module: imported & graph.keys() for module, imported in graph.items()}


def test_only_the_workers_of_trainables_import_ray():
    users = {
        str(file.relative_to(ROOT))
        for file in files_of("trainables")
        if "ray" in {name.partition(".")[0] for name in modules_imported_by(file)}
    }
    assert users == RAY_USERS


def asks_for_a_bucket(file: Path) -> bool:
    """Return whether `file`, which knows paths of both kinds, asks which kind a path is."""
    text = file.read_text(encoding="utf-8")
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    asked = (ast.unparse(call.args[1]) for call in calls if ast.unparse(call.func) == "isinstance")
    return "trainables.filesystem" in text and any({"Path", "RemotePath"} & {*kinds.split(" | ")} for kinds in asked)


def test_few_files_ask_whether_a_path_is_in_a_bucket():
    files = (file for top in ("search", "trainables") for file in files_of(top) if file.parent.name != "filesystem")
    assert {str(file.relative_to(ROOT)) for file in files if asks_for_a_bucket(file)} == ASKERS


@pytest.mark.parametrize("top", ["search", "trainables", "models"])
def test_no_folder_has_more_than_15_files(top):
    folders = {file.parent for file in files_of(top)}
    full = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in folders}
    assert not {folder: count for folder, count in full.items() if count > 16}  # __init__.py is not counted


def private_names_in(file: Path) -> set[str]:
    """Return the private names that `file` imports from a library or reads from an object other than self."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls", "super()"):
            # Foreach functions of torch are documented.
            found |= {node.attr} - ALLOWED if not node.attr.startswith("_foreach_") else set()
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr"):
            found |= {
                str(argument.value) for argument in node.args[1:2] if isinstance(argument, ast.Constant)
            } - ALLOWED
        elif isinstance(node, ast.Import):
            found |= {part for alias in node.names for part in alias.name.split(".")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PRIVATE_LIBRARIES:
            module = f"{node.module}."
            found |= {part for alias in node.names for part in f"{module}{alias.name}".split(".")}
            found |= {"_generated"} if module.startswith("ray.core.generated.") else set()
    return {name for name in found if name.startswith("_") and not name.endswith("__")}


@pytest.mark.parametrize("top", ["search", "trainables"])
def test_private_names_of_libraries_are_read_in_one_module(top):  # C41
    files = (file for file in files_of(top) if file != ROOT / top / "private_api.py")
    private = {str(file.relative_to(ROOT)): private_names_in(file) for file in files}
    assert not {file: names for file, names in private.items() if names}
