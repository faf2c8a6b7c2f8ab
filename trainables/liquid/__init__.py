"""The built-in task of the liquid spiking network."""

from searchlight.trainables.liquid.task import LiquidTask

__all__ = ["LiquidTask"]
