"""The environment of a search: the version of its code, its machine and packages, as files in its folder."""

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from searchlight import __version__
from searchlight.search.execution.cluster.local_machine import count_available_cpus
from searchlight.trainables.filesystem.atomic_file import write_atomic
from searchlight.trainables.registry import PACKAGE

ROOT = PACKAGE.resolve().parent
FILES = ("search.yaml", "environment.json", "requirements.txt", "code.diff")
LONGEST_DIFF = 2**20
TIMEOUT_S = 20
GPU_QUERY = "--query-gpu=name,memory.total,driver_version"


def write(folder: Path, task: str, modules: Mapping[str, Path], nodes: Sequence[Mapping[str, float]]) -> None:
    """Write environment.json, requirements.txt, and code.diff if the code differs from a commit."""
    path = Path(task.rpartition(":")[0])
    if modules:
        path = path if path.name else next(iter(modules.values()))  # the program of a command
        code, diff = get_code_version(path, modules, folder)
    else:
        code, diff = get_searchlight_version(), _get_diff(ROOT) if (ROOT / ".git").exists() else ""
    environment = {
        "code": code,
        "searchlight": get_searchlight_version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": {"name": _get_cpu_name(), "available": count_available_cpus()},
        "gpus": _run_command("nvidia-smi", GPU_QUERY, "--format=csv,noheader").splitlines(),
        "ray": [{name: node[name] for name in sorted(node) if not name.startswith("node:")} for node in nodes],
    }
    write_atomic(folder / "environment.json", json.dumps(environment, indent=2) + "\n")
    write_atomic(folder / "requirements.txt", "".join(f"{line}\n" for line in list_installed_packages()))
    if diff:
        write_atomic(folder / "code.diff", diff)
    else:
        (folder / "code.diff").unlink(missing_ok=True)


def read(folder: Path) -> dict[str, Any]:
    """Return the content of environment.json, or an empty dict if the file does not exist."""
    path = folder / "environment.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def get_code_version(path: Path, modules: Mapping[str, Path], folder: Path) -> tuple[str, str]:
    """Return the commit of the repository of the file `path`, and a diff of uncommitted changes.

    If git does not track the file, or if it is the copy in the `folder` of a search, return a digest of `modules`.
    """
    beside = path.parent
    commit = _run_git(beside, "rev-parse", "HEAD")
    if not commit or path.is_relative_to(folder) or not _run_git(beside, "ls-files", path.name):
        return compute_digest(modules), ""
    # Other untracked files are not the task's code, e.g. the folder of the searches.
    unknown = _run_git(beside, "ls-files", "--others", "--exclude-standard", "--", *map(str, modules.values()))
    if not unknown and not _run_git(beside, "status", "--porcelain", "--untracked-files=no"):
        return commit, ""
    return f"{commit}-dirty", _get_diff(beside)


def get_searchlight_version() -> str:
    """Return the commit of this project if it runs from its repository, else the version of the package."""
    if (ROOT / ".git").exists() and (commit := _run_git(ROOT, "rev-parse", "HEAD")):
        return f"{commit}-dirty" if _run_git(ROOT, "status", "--porcelain") else commit
    return __version__


def compute_digests(modules: Mapping[str, Path]) -> dict[str, str]:
    """Return the SHA-256 of each Python file in `modules`, files and packages by name, by its path relative to them."""
    files = {
        (Path(name) / file.relative_to(path)).as_posix(): file
        for name, path in modules.items()
        for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))
        if file != path / "__init__.py" or file.stat().st_size  # the copy of a folder without one has an empty one
    }
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}


def compute_digest(modules: Mapping[str, Path]) -> str:
    """Return one digest of all Python files in `modules`."""
    lines = "".join(f"{name} {each}\n" for name, each in sorted(compute_digests(modules).items()))
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()[:16]}"


def list_installed_packages() -> list[str]:
    """Return the installed packages as pip freeze prints them."""
    lines = set()
    for package in distributions():
        name, direct = package.metadata["Name"], json.loads(package.read_text("direct_url.json") or "{}")
        if not name:  # left by a broken installation
            continue
        # Remove a password from the URL.
        scheme, _, rest = direct.get("url", "").partition("://")
        url = f"{scheme}://{rest.partition('/')[0].rpartition('@')[2]}/{rest.partition('/')[2]}"
        commit = direct.get("vcs_info", {}).get("commit_id")
        pinned = f"{name} @ {direct['vcs_info']['vcs']}+{url}@{commit}" if commit else f"{name} @ {url}"
        lines.add(pinned if rest else f"{name}=={package.version}")
    return sorted(lines, key=str.lower)


def _get_diff(folder: Path) -> str:
    """Return the uncommitted changes of tracked files."""
    diff = _run_git(folder, "diff", "--no-color", "--no-ext-diff", "HEAD")
    return f"{diff[:LONGEST_DIFF]}\n(cut here)\n" if len(diff) > LONGEST_DIFF else f"{diff}\n" if diff else ""


def _run_git(folder: Path, *arguments: str) -> str:
    return _run_command("git", "-C", str(folder), *arguments)


def _run_command(*command: str) -> str:
    """Return the output of `command`, or "" if it is not installed, fails, or exceeds TIMEOUT_S."""
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.removesuffix("\n") if done.returncode == 0 else ""  # the last line of a diff may be blank


def _get_cpu_name() -> str:
    with suppress(OSError):  # only Linux has the file
        if found := re.search(r"^model name\s*:\s*(.*\S)", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M):
            return found.group(1)
    return platform.processor()
