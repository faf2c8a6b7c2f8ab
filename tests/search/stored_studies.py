"""Writes searches as a driver that ended, or died, leaves them: a folder with a study, without Ray."""

import time

from click.testing import CliRunner
from optuna.distributions import distribution_to_json
from optuna.samplers import RandomSampler

from searchlight.search.config import load_config
from searchlight.search.config.loading import to_yaml
from searchlight.search.report import main
from searchlight.search.space.search_space import resolve_space
from searchlight.search.study.study import create_study
from searchlight.trainables.task import TaskConfig, searchable
from tests.search.objectives import VAL_SCORE


class Config(TaskConfig):
    lr: float = searchable(0.5, low=0.0, high=1.0)


SPACE = resolve_space(Config, {"precision": "fp32"}, {})


def always_random(number):
    return RandomSampler(seed=number)


class Search:
    """A search over `arc` whose study is written by hand; tells `observers` what it writes, as a searcher does."""

    def __init__(self, folder, name="one", tracking_uri="", objective=VAL_SCORE, **given):
        self.config = load_config({"task": "arc", "name": name, "storage": str(folder), **given})
        self.objective = objective
        self.config.local_path.mkdir(parents=True)
        (self.config.local_path / "search.yaml").write_text(to_yaml(self.config))
        self.observers = []
        url, about = self.config.study, self.config.model_dump(mode="json", by_alias=True)
        self.study, self.store = create_study(self.config.local_path, always_random, [objective], url=url)
        searched = {p.name: distribution_to_json(p.distribution) for p in SPACE.parameters}
        known = {"first": [], "searched": searched, "fixed": {}, "files": {}, "tracking_uri": tracking_uri}
        self.study.save_metadata({"id": f"id of {name}", "config": about, **known})

    def begin(self, **config):
        number, values = self.study.ask(SPACE)
        config = config or {"lr": values["lr"], "inner": {"depth": 2}, "precision": "fp32"}
        self.study.record_config(number, config)
        self.tell(number)
        return number

    def tell(self, number, is_over=False):
        for observer in self.observers:
            observer.on_trial_changed(self.study.get_trial(number), is_over)

    def report(self, number, epoch, score, checkpoint=None, **metrics):
        report = {"metrics": {self.objective.metric: score, **metrics}, "checkpoint": checkpoint, "time": time.time()}
        self.study.report(number, epoch, score, report)
        self.tell(number)

    def end(self, number, outcome, reason=""):
        self.study.end(number, outcome, reason)
        self.tell(number)

    def run(self, *scores, outcome="completed", reason=""):
        number = self.begin()
        for epoch, score in enumerate(scores, start=1):
            self.report(number, epoch, score)
        self.end(number, outcome, reason)
        return number

    def confirm(self, trial, seed, score, outcome="completed"):
        """A run that confirms `trial` (None: the defaults) under a new seed."""
        confirms = {"trial": trial, "round": 0, "seed": seed}
        config = {"lr": 0.5, "inner": {"depth": 2}, "precision": "fp32", "seed": seed}
        number = self.study.create_copy(SPACE, {}, {"config": config, "confirms": confirms})
        self.tell(number)
        self.report(number, 1, score - 0.5)
        self.report(number, 2, score, f"{number}-2.pt")
        self.end(number, outcome)
        return number

    def curve(self, number):
        return sorted(self.study.get_trial(number).intermediate_values.items())


def replayed(search):
    """What `search/report.py NAME --replay` does, once no driver holds the search any more."""
    search.store.close()
    return CliRunner().invoke(main, [search.config.name, "--storage", str(search.config.storage), "--replay"])
