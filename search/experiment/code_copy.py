"""The copies of a task's files that a search keeps, one for each version that it ran."""

import hashlib
import itertools
import shutil
from pathlib import Path

from searchlight.search.storage.options import StorageOptions
from searchlight.search.study.study import SearchStudy
from searchlight.search.task_source import TaskSource
from searchlight.search.tracking.provenance import compute_digests

CODE = "code"
EMPTY = hashlib.sha256(b"").hexdigest()  # of a file that marks a package: earlier versions recorded these as well


def record_code(study: SearchStudy, source: TaskSource, options: StorageOptions) -> list[str]:
    """Record the files that the task imports. Return a line about those that have changed since the search last ran."""
    before, current = study.metadata["files"], compute_digests(source.modules)
    before = {name: digest for name, digest in before.items() if digest != EMPTY or not name.endswith("/__init__.py")}
    changed = [name for name in sorted({**before, **current}) if before.get(name) != current.get(name)]
    # An older search has recorded files that it did not import.
    changed = [name for name in changed if name.partition("/")[0] in source.modules]
    if not changed:
        return []
    study.save_metadata({**study.metadata, "files": current})
    code, archived = options.local_path / CODE, ""
    if code.exists() and _is_outdated(code, source):  # else trials run the copy
        archived = f"; the earlier code is in {options.path / _get_archive(code).name}"
    return [f"{', '.join(changed)} changed since {options.name} last ran, and the new code is used{archived}"]


def copy_code(source: TaskSource, folder: Path) -> None:
    """Copy the modules of a task to the folder of its search, unless they are there. Archive an earlier copy.

    The copy is complete or absent: a search that is killed meanwhile must not resume with a part of its task.
    """
    code = folder / CODE
    if not source.modules or (code.exists() and not _is_outdated(code, source)):
        return
    unfinished = code.with_name(f"{CODE}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for name, path in source.modules.items():
        if path.is_dir():
            shutil.copytree(path, unfinished / name, ignore=shutil.ignore_patterns("__pycache__"))
            # Else a package of this name that is later on the path of a worker would win.
            (unfinished / name / "__init__.py").touch()
        else:
            shutil.copy(path, unfinished / name)
    if code.exists():
        code.rename(_get_archive(code))
    unfinished.rename(code)


def _is_outdated(code: Path, source: TaskSource) -> bool:
    """Return whether the task imports a file whose copy has other content."""
    copies = compute_digests({name: path for name in source.modules if (path := code / name).exists()})
    return compute_digests(source.modules) != copies


def _get_archive(code: Path) -> Path:
    return next(path for n in itertools.count(1) if not (path := code.with_name(f"{CODE}-{n}")).exists())
