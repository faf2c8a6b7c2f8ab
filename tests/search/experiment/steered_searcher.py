"""A searcher with commands, driven as Tune drives it, without processes."""

from searchlight.search.experiment.steering import Steering
from searchlight.search.steering.command import Command
from searchlight.search.study.trial import get_outcome


class Driver:
    """A searcher with commands. Files of commands are exchanged by the thread of `steering`."""

    def __init__(self, made, place, **more):
        self.searcher, self.study, self.watching = made
        self.place, self.halted, self.ended, self.told = place, [], [], []
        self.steering = Steering(
            self.searcher, place, self.halted.append, self.ended.append, self.told.append, self.told.append, **more
        )
        self.searcher.recover()

    def give(self, operation, author="ann", why="", revision=None, **args):
        """Apply a command, and return its answer."""
        command = Command(operation, args, author, why, revision)
        return self.apply(command).answer

    def apply(self, command):
        self.steering._arrived.put(command)
        self.searcher.apply_commands()
        assert self.searcher.error is None
        return self.steering._answers.get_nowait()

    def outcomes(self):
        return [get_outcome(trial) for trial in self.study.get_trials()]
