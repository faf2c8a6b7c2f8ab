"""Schedulers decide which trials continue, pause or stop."""

from searchlight.search.schedulers.factory import create_scheduler

__all__ = ["create_scheduler"]
