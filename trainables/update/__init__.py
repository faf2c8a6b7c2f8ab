"""One exact optimizer update for each window of micro-batches."""

from searchlight.trainables.update.batches import windows
from searchlight.trainables.update.ema import Ema
from searchlight.trainables.update.updater import Updater, UpdateReport

__all__ = ["Ema", "UpdateReport", "Updater", "windows"]
