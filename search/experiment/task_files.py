"""What a task writes once for all workers of a search, in the folder of the search."""

import inspect
import shutil

from search.experiment.plan import SearchPlan
from trainables.filesystem.paths import StoragePath
from trainables.task import Task

NAME = "files"


def prepare_task_files(planned: SearchPlan) -> StoragePath:
    """The folder that the task's `prepare` filled, where the search lies: whole, and as it was if the search is taken
    up. There is none of a task that prepares nothing. In a bucket it is once the search has begun.

    Raises:
        Exception: Whatever the task's `prepare` raises; nothing is left of it then.
    """
    config, task = planned.config, planned.source.task_class
    folder, kept = config.local_path / NAME, config.path / NAME
    if kept.exists() or task is None or inspect.getattr_static(task, "prepare") is Task.__dict__["prepare"]:
        return kept
    staging = folder.with_name(f"{NAME}.tmp")
    shutil.rmtree(staging, ignore_errors=True)  # of a driver that was killed
    staging.mkdir()
    try:
        task.prepare(planned.space.build_config(planned.space.get_defaults()), staging)
    except BaseException:  # whatever ends it: half of the files must not pass for all; it goes on
        shutil.rmtree(staging)
        raise
    staging.rename(folder)
    return kept
