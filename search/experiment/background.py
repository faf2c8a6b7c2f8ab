"""A search that runs in a thread of this process, for scripts and notebooks."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from searchlight.search.analysis.result import SearchResult
from searchlight.search.config import SearchConfig
from searchlight.search.config.loading import resolve_config
from searchlight.search.errors import UsageError
from searchlight.search.experiment.runner import run
from searchlight.search.folder.locations import check_location
from searchlight.search.formatting import resume_hint
from searchlight.search.reporting.running_search import RunningSearch

POLL_S = 0.2


class BackgroundSearch(RunningSearch):
    """A search of this process, whose end `wait` waits for.

    It also ends with the command `finish`, and is interrupted if its script fails. A script that ends waits for it.
    """

    def __init__(self, config: SearchConfig) -> None:
        super().__init__(config.path)
        pool = ThreadPoolExecutor(1, "search")
        self._end = pool.submit(run, config, show=self._tell_how_to_resume)
        pool.shutdown(wait=False)  # its thread ends with the search

    def wait_for_begin(self) -> None:
        """Return once the search can be looked at.

        Raises:
            UsageError: It cannot run as configured.
        """
        while not self._end.done():
            try:
                self.load()
                return
            except UsageError:  # its study is not there yet
                time.sleep(POLL_S)
        self.wait()

    def _tell_how_to_resume(self, result: SearchResult) -> None:
        if "interrupted" in result.stopped:
            print(resume_hint(self.place), file=sys.stderr)

    def wait(self) -> SearchResult:
        """Wait until the search ends. Return its result, or raise its error."""
        return self._end.result()


def start(config: SearchConfig) -> BackgroundSearch:
    """Begin a new search in the background.

    Raises:
        UsageError: It cannot run as configured. None of its files are left.
    """
    config = resolve_config(config)
    check_location(config.storage, config.name)  # else an earlier search of this name would be looked at
    search = BackgroundSearch(config)
    search.wait_for_begin()
    return search
