"""A driver that follows commands in a thread, for tests of those who send them."""

import threading

from tests.search.execution.searcher_harness import report


class Driver:
    """A searcher whose driver has begun, with a trial at its first rung."""

    def __init__(self, made, place):
        self.searcher, study, _ = made
        self.name = place.name
        self.lock, self.over = threading.Lock(), threading.Event()
        self.thread = threading.Thread(target=self.follow, daemon=True)
        study.save_metadata({"config": {"trials": 10, "sampler": "tpe", "scheduler": "asha"}, "rungs": [1, 3]})
        study.record_driver_start(1.0)
        self.call(self.searcher.suggest, "t0")
        self.call(report, self.searcher, "t0", 1, 0.5, done=True)

    def follow(self):
        while not self.over.wait(0.02):
            self.call(self.searcher.apply_commands)

    def call(self, function, *arguments, **options):
        """Call a function of the searcher, whose study one thread uses at a time."""
        with self.lock:
            function(*arguments, **options)
            self.searcher.study.commit()
