"""The folder of a trial in which its program runs, with links to the files of the user and copies of small ones."""

import errno
import itertools
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from searchlight.trainables.command.collector import Report
from searchlight.trainables.command.settings import LONGEST_SAVE_S, CommandSettings
from searchlight.trainables.filesystem.paths import replacing
from searchlight.trainables.filesystem.storage_errors import CONFLICTS, unreadable_errors, unwritable_errors

TRIALS = "trials"  # in the folder of a search, with a folder for each trial
OUTPUT = "output.txt"
CHECKPOINTS = "checkpoints"
REPORTS = ".reports.jsonl"
OTHERS_CHECKPOINTS = "trial-checkpoints"  # if the user has a folder CHECKPOINTS
OF_SEARCH = ("search.yaml", "ladder.yaml")  # in the folder of a search
TRACKING = ("mlflow.db", "mlartifacts")  # beside it
LEFT_OUT = (".git", OUTPUT, REPORTS)
# The folders of the user with at most this many entries are folders of the trial too, so that no program writes into
# another's. Larger ones, such as data and environments, are links.
SMALL = 1000
LARGEST_COPY = 2**20  # bytes of a file that is copied, since a program may write to it; code and programs are links
# It is left out if code is copied: Python tells copies apart by their size and second alone, and trials may share both.
CACHE = "__pycache__"
EXECUTABLE = 0o111
CHANGES = (errno.ENOENT, errno.ENOTEMPTY)  # errors of a deletion while something else writes there
OF_PROGRAM = (*CHANGES, errno.EACCES, errno.EPERM)  # the same in a folder of the program, which may take away rights
QUIET_S = 0.5  # without a write, after which a checkpoint counts as complete
POLL_S = 0.1


class TrialFolder:
    """The files of one trial: what its program writes, its output, its checkpoints, and its reports so far.

    Attributes:
        path: The folder. It is the program's current one, unless that is to be the user's.
        source: The folder of the user.
        checkpoints: The folder for the program's own checkpoints.
        can_continue: Whether the program, which was started before, resumes from what it has written here.
    """

    def __init__(self, settings: CommandSettings, trial: int) -> None:
        self.path = Path(settings.trial_root) / str(trial)
        self._settings = settings
        self.source = Path(settings.folder)
        own, other = self.path / CHECKPOINTS, self.path / OTHERS_CHECKPOINTS
        with unreadable_errors(self.path):
            usual = other if (self.source / CHECKPOINTS).exists() else own
            # The user may have created or deleted such a folder since the trial began.
            self.checkpoints = other if other.exists() else own if own.exists() else usual
            self.can_continue = settings.can_resume and (
                _has_entries(self.checkpoints) if settings.uses_checkpoints else (self.path / REPORTS).exists()
            )
        # Without all reports before it, the next one would get the number of another epoch.
        self.can_continue = self.can_continue and self._load_reports() is not None
        if not self.can_continue:
            self.checkpoints = usual

    @property
    def output(self) -> Path:
        """The file with all that the program has printed."""
        return self.path / OUTPUT

    @property
    def current(self) -> Path:
        """The current folder of the program."""
        return self.path if self._settings.link else self.source

    def prepare(self, copies_code: bool = False) -> None:
        """Create the folder with its links, or complete it if the program continues. Else only its output is kept.

        Args:
            copies_code: Whether Python files are copied, also if no file takes a value.
        """
        copies_code = copies_code or self._settings.copies_code
        with unwritable_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            entries = [] if self.can_continue else [*self.path.iterdir()]
        for entry in entries:
            is_folder = entry.is_dir() and not entry.is_symlink()
            with unwritable_errors(entry, OF_PROGRAM if is_folder else ()):
                if is_folder:
                    shutil.rmtree(entry)
                elif entry != self.output:
                    entry.unlink()
        self._cut_half_report()
        with unwritable_errors(self.checkpoints, CONFLICTS):  # first, since it tells a later start which folder it is
            self.checkpoints.mkdir(exist_ok=True)
        if self._settings.link:
            for origin, is_open in [*self._list_user_files()]:  # their folders are closed if a write fails
                target = self.path / Path(origin).relative_to(self.source)
                if target.is_relative_to(self.checkpoints):  # the user's are newer than the trial's
                    continue
                if target.name == CACHE and copies_code:
                    continue
                if is_open:
                    with unwritable_errors(target, CONFLICTS):
                        target.mkdir(exist_ok=True)
                elif not os.path.lexists(target):
                    with suppress(FileNotFoundError):  # it is gone meanwhile
                        link_or_copy(origin, target, copies_code)
                elif origin.is_dir():  # if the trial has opened it before, its links are gone
                    with unwritable_errors(target):
                        _link_entries(Path(origin), target)
        if self.output.exists():
            how = "continues" if self.can_continue else "starts again"
            with unwritable_errors(self.output), self.output.open("a", encoding="utf-8") as file:
                file.write(f"--- searchlight: the program {how}, {time.strftime('%Y-%m-%d %H:%M:%S')} ---\n")

    def write(self, files: Mapping[str, str]) -> None:
        """Write files by their relative paths, in the place of links to the user's."""
        for name, text in files.items():
            path = self.path / name
            with unwritable_errors(path, CONFLICTS):
                for parent in [*Path(name).parents][-2::-1]:  # without the trial's folder, the outermost first
                    if (self.path / parent).is_symlink():
                        _open_link(self.path / parent)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                path.write_text(text, encoding="utf-8")
                shutil.copymode(self.source / name, path)  # a script may be the program itself

    def remove_links(self) -> None:
        """Remove links to the user's files, copies that have not changed, and folders that have nothing else."""
        for folder, names, files in os.walk(self.path, topdown=False):
            for path in (Path(folder, name) for name in (*names, *files)):
                is_folder = path.is_dir() and not path.is_symlink()
                if path.is_symlink():
                    is_users = os.readlink(path).startswith(f"{self.source}{os.sep}")
                else:  # a copy
                    origin = self.source / path.relative_to(self.path)
                    is_users = path.is_file() and _read_state(path) == _read_state(origin)
                with unwritable_errors(path, OF_PROGRAM if is_folder or folder != str(self.path) else CHANGES):
                    if is_users:
                        path.unlink()
                    elif is_folder and path.name != OTHERS_CHECKPOINTS and not any(path.iterdir()):
                        path.rmdir()

    def read_shared_files(self) -> dict[str, tuple[int, int]]:
        """Return the state of each file of the user by its relative path, without the files of large folders."""
        files = (Path(entry) for entry, is_open in self._list_user_files() if not is_open)
        states = {str(path.relative_to(self.source)): _read_state(path) for path in files if path.is_file()}
        return {name: state for name, state in states.items() if state is not None}

    def _list_user_files(self) -> Iterator[tuple[os.DirEntry[str], bool]]:
        """Yield what is in the user's folder and in its small folders, and whether it is such a folder."""
        return _list_tree(self.source, self.path.parents[1])

    def read_reports(self) -> list[Report]:
        """Return the reports that the program has made before, if it continues after them."""
        return (self._load_reports() or []) if self.can_continue else []

    def _load_reports(self) -> list[Report] | None:
        """Return the kept reports, or None if they are damaged, as by a power cut."""
        file = self.path / REPORTS
        with unreadable_errors(file):
            lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        complete = (line for line in lines if line.endswith(b"\n"))  # a worker may have died while it wrote
        try:
            return [Report(**json.loads(line)) for line in complete]
        except (ValueError, TypeError):
            return None

    def add_reports(self, reports: Iterable[Report]) -> None:
        """Keep reports for a later start of the program, if that continues after them."""
        if self._settings.can_resume:
            path = self.path / REPORTS
            with unwritable_errors(path), path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps({"step": each.step, "metrics": each.metrics}) + "\n" for each in reports)

    def _cut_half_report(self) -> None:
        """Remove what a full disk or a killed worker has left of a report, since others follow it."""
        file = self.path / REPORTS
        if file.exists():
            with unwritable_errors(file), file.open("r+b") as opened:
                opened.truncate(opened.read().rfind(b"\n") + 1)

    def wait_until_quiet(self) -> None:
        """Wait a while until the program writes no checkpoint: it may save one after each report."""
        end = time.monotonic() + LONGEST_SAVE_S
        while time.monotonic() < end and time.time() - self._find_last_write() < QUIET_S:
            time.sleep(POLL_S)

    def _find_last_write(self) -> float:
        try:
            return max((path.stat().st_mtime for path in self.checkpoints.rglob("*")), default=0.0)
        except OSError:  # a file or folder was renamed or deleted meanwhile
            return time.time()


def link_or_copy(entry: os.DirEntry[str], target: Path, copies_code: bool = False) -> None:
    """Make `target` a copy of a small file of the user that a program may write to, or else a link to the entry.

    Args:
        copies_code: Whether small Python files are copied, too, even those that the user has as links.
    """
    is_code = entry.name.endswith(".py")
    is_file = entry.is_file(follow_symlinks=is_code)
    if is_file and (copies_code or not is_code) and os.access(entry, os.R_OK):
        stat = entry.stat()
        if stat.st_size <= LARGEST_COPY and (is_code or not stat.st_mode & EXECUTABLE):
            content = Path(entry).read_bytes()
            with unwritable_errors(target), replacing(target) as temporary:  # what is there is not copied again
                temporary.write_bytes(content)
                temporary.chmod(stat.st_mode)
                os.utime(temporary, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            return
    with unwritable_errors(target):
        target.symlink_to(entry)


def _open_link(folder: Path) -> None:
    """Replace a link to a folder of the user by a folder with links to its entries."""
    opened = folder.with_name(f".{folder.name}.opened")
    if opened.exists():  # of a worker that was killed
        shutil.rmtree(opened)
    opened.mkdir()
    _link_entries(Path(os.readlink(folder)), opened)
    folder.unlink()
    opened.rename(folder)


def _link_entries(source: Path, folder: Path) -> None:
    """Link what a folder of the user has and `folder` lacks, also in its folders, but copy Python files.

    Do nothing if `folder` is a link.
    """
    if folder.is_symlink() or not folder.is_dir():
        return
    for entry in os.scandir(source):
        place = folder / entry.name
        if not os.path.lexists(place):
            if entry.name.endswith(".py"):
                link_or_copy(entry, place, copies_code=True)
            elif entry.name != CACHE:
                place.symlink_to(entry)
        elif entry.is_dir():
            _link_entries(Path(entry), place)


def _has_entries(folder: Path) -> bool:
    """Return whether there is a folder with anything in it. A folder that cannot be read raises an OSError."""
    try:
        return bool(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _list_tree(folder: Path, search: Path, is_top: bool = True) -> Iterator[tuple[os.DirEntry[str], bool]]:
    """Yield the entries of a folder, and whether they are opened, without `search` and the searches beside it.

    Args:
        is_top: Whether it is the user's folder, in which any folder with a search.yaml is the user's.
    """
    for entry in _list_entries(folder):
        path = Path(entry)
        is_folder = entry.is_dir(follow_symlinks=False) and entry.name != CACHE
        if entry.name in LEFT_OUT or path == search or (folder == search.parent and not is_top and _is_own(path)):
            continue
        if path == search.parent and all(each == search or _is_own(each) for each in map(Path, _list_entries(path))):
            continue
        is_open = is_folder and (search.is_relative_to(path) or _is_small(path))
        yield entry, is_open
        if is_open:
            yield from _list_tree(path, search, is_top=False)


def _list_entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder, or nothing if it is gone: a search that begins beside this one writes there."""
    try:
        with os.scandir(folder) as entries:
            return [*entries]
    except FileNotFoundError:
        return []


def _is_own(path: Path) -> bool:
    """Return whether a path in the folder of searches is a search, or a file of their MLflow, and not the user's."""
    return path.name.startswith(TRACKING) or any((path / name).exists() for name in OF_SEARCH)


def _read_state(path: Path) -> tuple[int, int] | None:
    """Return the size of a file and the time of its last change, or None without a file."""
    try:
        stat = path.stat()
    except OSError:  # e.g. it was deleted meanwhile
        return None
    return stat.st_size, stat.st_mtime_ns


def _is_small(folder: Path) -> bool:
    entries = (name for _, names, files in os.walk(folder) for name in (*names, *files))
    return sum(1 for _ in itertools.islice(entries, SMALL + 1)) <= SMALL
