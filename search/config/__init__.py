"""The request of the user: options, task, objectives and search space."""

from searchlight.search.config.loading import load_config
from searchlight.search.config.search_config import SearchConfig

__all__ = ["SearchConfig", "load_config"]
