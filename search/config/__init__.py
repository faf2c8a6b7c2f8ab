"""What the user asked for: options, task, objectives and search space."""

from search.config.search_config import SearchConfig, load_config

__all__ = ["SearchConfig", "load_config"]
