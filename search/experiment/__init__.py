"""One search from its start to its end."""

from search.analysis.result import SearchResult as Result
from search.config import SearchConfig, load_config
from search.experiment.plan import plan
from search.experiment.runner import resume, run

__all__ = ["Result", "SearchConfig", "load_config", "plan", "resume", "run"]
