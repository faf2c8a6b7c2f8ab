"""Schedulers decide which trials continue, pause or stop."""

from search.schedulers.factory import make_schedule

__all__ = ["make_schedule"]
