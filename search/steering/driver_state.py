"""What only the driver of a search knows of it, in a file of the search's folder that others read."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from pydantic import TypeAdapter

from searchlight.search.errors import UsageError
from searchlight.trainables.filesystem.atomic_file import write_atomic
from searchlight.trainables.filesystem.paths import StoragePath

FILE = "driver.json"
EVERY_S = 5.0  # interval at which it is written
SILENT_S = 60.0  # a driver that has not written for so long was probably killed, or its machine is away


@dataclass(frozen=True)
class DriverState:
    """The state of a driver at one moment.

    Attributes:
        at: When it was written, in seconds since 1970.
        live: Numbers of the trials that workers train.
        trials: How many trials may begin.
        concurrency: How many trials may run at a time, by the options and the room of the cluster.
        gpu_hours: The limit of the GPU-hours, or None.
        gpu_s: The GPU-seconds of all trials.
        time_limit_s: The limit of this driver's running time, or None.
        left_s: In how many seconds the search will probably end, or None if nothing supports an estimate.
        basis: What `left_s` is computed from, as text.
        waiting: What gangs without workers wait for, or "".
        warnings: The last warnings of the driver, each with its time in seconds since 1970.
    """

    at: float
    live: Sequence[int] = ()
    trials: int = 0
    concurrency: int = 0
    gpu_hours: float | None = None
    gpu_s: float = 0.0
    time_limit_s: float | None = None
    left_s: float | None = None
    basis: str = ""
    waiting: str = ""
    warnings: Sequence[tuple[float, str]] = ()


STATE = TypeAdapter(DriverState)


def write_state(place: StoragePath, state: DriverState) -> None:
    write_atomic(place / FILE, json.dumps(asdict(state)))


def read_state(place: StoragePath) -> DriverState | None:
    """Return the state that the last driver of the search at `place` has written, or None if it has written none.

    Raises:
        UsageError: The file cannot be read, or holds something else.
    """
    try:
        content = json.loads((place / FILE).read_text(encoding="utf-8"))
        known = {field.name for field in fields(DriverState)}  # a later version may write more
        return STATE.validate_python({name: value for name, value in content.items() if name in known})
    except FileNotFoundError:  # the search begins, or is of an older version
        return None
    except (OSError, ValueError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{place / FILE} must be what a driver has written, but {reason}. Remove it.") from error
