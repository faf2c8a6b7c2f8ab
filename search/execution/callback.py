"""The observers of a search."""

from optuna.trial import FrozenTrial


class TrialCallback:
    """A base class of the observers of a search. The method runs on Tune's event loop and must not raise or block.

    An observer derives all that it does from the state of a trial, in a running search and after a resume alike. See
    `searchlight.search.study.changes.find_changes`.
    """

    def on_trial_changed(self, trial: FrozenTrial, is_over: bool = False) -> None:
        """Handle a new state of `trial`: it has begun, reported or ended.

        If the search `is_over`, a trial that has not ended is interrupted. The study does not record that. The state
        must not be modified, but may be kept: the study replaces trials instead of modifying them.
        """
