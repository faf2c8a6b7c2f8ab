"""One search from its start to its end."""

from search.analysis.result import Result
from search.config import SearchConfig, load_config
from search.experiment.plan import Plan, plan
from search.experiment.runner import resume, run

__all__ = ["Plan", "Result", "SearchConfig", "load_config", "plan", "resume", "run"]
