"""A search that runs in a thread of this process, for scripts and notebooks."""

import threading
import time

from searchlight.search.analysis.result import SearchResult
from searchlight.search.config import SearchConfig
from searchlight.search.config.loading import resolve_config
from searchlight.search.errors import UsageError
from searchlight.search.experiment.runner import run
from searchlight.search.folder.locations import check_location
from searchlight.search.reporting.running_search import RunningSearch

POLL_S = 0.2


class BackgroundSearch(RunningSearch):
    """A search of this process, whose end `wait` waits for. It also ends with the command `finish`."""

    def __init__(self, config: SearchConfig) -> None:
        super().__init__(config.path)
        self._config = config
        self._result: SearchResult | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="search")

    def _run(self) -> None:
        try:
            self._result = run(self._config)
        except BaseException as error:  # any error: `wait` raises it
            self._error = error

    def begin(self) -> None:
        """Begin the search, and return once it can be looked at.

        Raises:
            UsageError: It cannot run as configured.
        """
        self._thread.start()
        while self._thread.is_alive():
            try:
                self.load()
                return
            except UsageError:  # its study is not there yet
                time.sleep(POLL_S)
        self.wait()

    def wait(self) -> SearchResult:
        """Wait until the search ends. Return its result, or raise its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


def start(config: SearchConfig) -> BackgroundSearch:
    """Begin a new search in the background.

    Raises:
        UsageError: It cannot run as configured. None of its files are left.
    """
    config = resolve_config(config)
    check_location(config.storage, config.name)  # else `begin` would look at an earlier search of this name
    search = BackgroundSearch(config)
    search.begin()
    return search
