"""One exact optimizer update for each window of micro-batches."""

from trainables.update.batches import windows
from trainables.update.ema import Ema
from trainables.update.updater import Updater, UpdateReport

__all__ = ["Ema", "UpdateReport", "Updater", "windows"]
