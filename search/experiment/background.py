"""A search that runs in a thread of this process, for scripts and notebooks."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor, process

from searchlight.search import private_api
from searchlight.search.analysis.result import SearchResult
from searchlight.search.config import SearchConfig
from searchlight.search.config.loading import resolve_config
from searchlight.search.errors import UsageError
from searchlight.search.experiment.runner import run
from searchlight.search.folder.locations import check_location
from searchlight.search.formatting import resume_hint
from searchlight.search.reporting.console.summary import print_summary
from searchlight.search.reporting.console.tables import create_report_console
from searchlight.search.reporting.running_search import RunningSearch

POLL_S = 0.2
assert process, "imported before a script ends: later, Python refuses it"


class BackgroundSearch(RunningSearch):
    """A search of this process, whose end `wait` waits for.

    It also ends with the command `finish`, and is interrupted if its script fails. A script that ends waits for it.
    """

    def __init__(self, config: SearchConfig) -> None:
        super().__init__(config.path)
        pool = ThreadPoolExecutor(1, "search")
        self._end = pool.submit(run, config, show=self._tell_how_to_resume)
        pool.shutdown(wait=False)  # its thread ends with the search
        self._is_awaited, self._is_quiet = False, config.quiet
        private_api.call_before_pools_close(self._wait_at_exit)

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
        if "interrupted" in result.reasons:
            print(resume_hint(self.place), file=sys.stderr)

    def wait(self) -> SearchResult:
        """Wait until the search ends. Return its result, or raise its error."""
        self._is_awaited = True
        return self._end.result()

    def _wait_at_exit(self) -> None:
        """Wait for the search at the end of its script, and tell the end of one that the script has not waited for."""
        try:
            error = self._end.exception()
        except KeyboardInterrupt:
            sys.excepthook(*sys.exc_info())  # it interrupts the search
            error = self._end.exception()
        if self._is_awaited:
            return
        if error is None:
            print_summary(create_report_console(), self._end.result(), self.place, self._is_quiet)
        else:
            print(f"search {self.name} has failed: {error}", file=sys.stderr)


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
