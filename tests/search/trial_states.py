"""Trials as a study has them, told to observers at each change without a study."""

from optuna.trial import TrialState, create_trial

STATES = {"": TrialState.RUNNING, "completed": TrialState.COMPLETE, "failed": TrialState.FAIL}


class TrialStates:
    """The trials of a search. Each method changes one, and tells its state to `observers`."""

    def __init__(self, *observers):
        self.observers = observers
        self.attributes = {}  # by trial
        self.curves = {}

    def start(self, number, config, **attributes):
        self.attributes[number], self.curves[number] = {"config": config, **attributes}, {}
        self.tell(number)

    def report(self, number, epoch, metrics, at=0.0):
        """Add a report, whose first metric is the objective."""
        self.attributes[number][f"report/{epoch}"] = {"metrics": metrics, "checkpoint": None, "time": at}
        self.curves[number][epoch] = next(iter(metrics.values()))
        self.tell(number)

    def end(self, number, outcome, reason=""):
        self.attributes[number] |= {"outcome": outcome, "reason": reason}
        self.tell(number)

    def tell(self, number, is_over=False):
        for observer in self.observers:
            observer.on_trial_changed(self.get(number), is_over)

    def get_all(self):
        return [self.get(number) for number in self.attributes]

    def get(self, number):
        """The present state of a trial."""
        attributes = self.attributes[number]
        outcome = attributes.get("outcome", "")
        trial = create_trial(
            state=STATES.get(outcome, TrialState.PRUNED),
            value=0.0 if outcome == "completed" else None,
            user_attrs=dict(attributes),
            intermediate_values=dict(self.curves[number]),
        )
        trial.number = number
        return trial
