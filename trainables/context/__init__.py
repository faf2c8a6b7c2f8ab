"""The device, rank, random numbers and cache of one worker."""

from searchlight.trainables.context.context import Context

__all__ = ["Context"]
