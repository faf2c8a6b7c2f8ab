"""One search from its start to its end."""

from searchlight.search.analysis.result import SearchResult as Result
from searchlight.search.config import SearchConfig, load_config
from searchlight.search.experiment.background import start
from searchlight.search.experiment.plan import plan
from searchlight.search.experiment.runner import resume, run

__all__ = ["Result", "SearchConfig", "load_config", "plan", "resume", "run", "start"]
