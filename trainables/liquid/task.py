"""The task `liquid`: a liquid spiking network that learns one task after another."""

import functools
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from searchlight.models.data import SOURCES, Samples
from searchlight.models.liquid.continual import Matrix, draw_matrix
from searchlight.models.liquid.losses import compute_losses, compute_score, measure_errors
from searchlight.models.liquid.network import LiquidNetwork
from searchlight.models.liquid.plasticity import RULES, PlasticSynapses
from searchlight.models.liquid.spiking import LIF
from searchlight.models.liquid.strategy import ContinualStrategy, ReplayBatch
from searchlight.models.liquid.task_stream import Stream, build_stream
from searchlight.trainables.liquid import data
from searchlight.trainables.liquid.config import LiquidConfig
from searchlight.trainables.task import Task
from searchlight.trainables.update import UpdateReport
from searchlight.trainables.update.lr_schedules import linear_warmup, warmup_cosine

logger = logging.getLogger(__name__)

TESTED = 64  # sequences per batch
SATURATED = 0.5  # share of plastic weights at a bound above which a warning is logged
ERRORS = {"bytes": "bpb", "values": "nmse"}  # metrics in addition to the score


class Batch(NamedTuple):
    """Sequences of the current task, followed by replayed sequences of earlier tasks.

    Attributes:
        tasks: The task of each sequence, shape (B,).
        recalled: The number of replayed sequences.
        logits: The outputs stored for them when they were learned, or None if they are not used.
    """

    samples: Samples
    tasks: Tensor
    recalled: int
    logits: Tensor | None


class LiquidTask(Task[LiquidConfig]):
    """Learns the tasks of a stream one after another and is scored on all of them.

    Each task is trained for its share of the epochs. The objective `val/score` is the mean over all tasks of the
    stream, including future ones, so that reports of the same epoch are comparable. The score is the accuracy of
    labels, the share of the 8 bits of a byte that is saved, or the share of the variance of values that is explained.
    """

    objective, mode = "val/score", "max"
    trials = 96
    units: ClassVar[Mapping[str, str]] = {
        "val/score": "at best 1",
        "val/bpb": "bits per byte",
        "val/nmse": "squared error, as a share of the variance",
        "val/forgetting": "score lost on earlier tasks",
    }

    @classmethod
    def judged_from(cls, config: LiquidConfig) -> int:
        """Return the last epoch of the second task: forgetting of the first cannot be measured before."""
        tasks = config.continual.tasks
        return 1 if tasks == 1 else math.ceil(2 * config.epochs / tasks)

    @classmethod
    def prepare(cls, config: LiquidConfig, folder: Path) -> None:
        if config.data == "text":
            data.write_corpus(folder)
        if config.plasticity.rule != "none":
            logger.warning(
                "plasticity.rule=%s: no rule has been shown to score higher than plastic synapses that never change.",
                config.plasticity.rule,
            )

    def build(self) -> None:
        config = self.config
        kept = (config.data, config.length, config.test_samples, config.continual.tasks, config.continual.scenario)
        self.stream, digest, self.baseline = self.context.cache(f"stream {kept}", self._load_stream)
        self.dataset(_format_title(config.data), digest=digest, source=config.data)
        self.dataset(_format_title(config.data), digest=digest, source=config.data, use="evaluation")
        self.network = LiquidNetwork(
            self.stream.features,
            self.stream.outputs,
            "sequence" if self.stream.kind == "labels" else "step",
            width=config.width,
            layers=config.layers,
            units=config.units,
            spikes=config.spiking.neurons,
            cell=config.cell,
            neurons=self._create_neurons,
            synapses=None if config.plasticity.rule == "none" else self._create_synapses,
            dropout=config.dropout,
        )
        self.modules = {"network": self.network}
        self._create_optimizers()
        self.past = ContinualStrategy(
            self.network,
            self.stream,
            method=config.consolidation.method,
            strength=getattr(config.consolidation, f"{config.consolidation.method}_strength", 0.0),
            decay=config.consolidation.decay,
            remembered=config.replay.size if config.replay.fraction else 0,
            balanced=config.replay.balanced,
            with_logits=config.replay.logits_weight > 0,
        )
        if config.consolidation.method == "si":
            self.transforms = {"train": self.past.begin_step}
        self.saturated = set[int]()  # layers that have been warned about
        self.matrix = Matrix(self.stream.tasks)
        self.learning = 0  # index of the current task
        self.trained_on = self._create_trained_mask()

    def _create_optimizers(self) -> None:
        config, named = self.config, dict(self.network.named_parameters())
        rates = [parameter for name, parameter in named.items() if name.endswith(".log_rates")]
        matrices = [parameter for parameter in named.values() if parameter.dim() > 1]
        others = [p for name, p in named.items() if p.dim() < 2 and not name.endswith(".log_rates")]
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=config.lr, fused=True)
        self.optimizers = {"network": optimizer}
        if rates:
            self.optimizers["rates"] = torch.optim.Adam(rates, lr=config.plasticity.meta_lr)
        updates = sum(
            math.ceil(self.context.micro_batches(self._count_samples(epoch), config.batch_size) / config.accumulation)
            for epoch in range(config.epochs)
        )
        if config.schedule == "cosine":
            factor = functools.partial(warmup_cosine, updates=updates, warmup=config.warmup)
        else:
            factor = functools.partial(linear_warmup, rising=round(updates * config.warmup))
        self.schedulers = [LambdaLR(optimizer, factor)]

    def train_batches(self, epoch: int) -> Iterator[Batch]:
        """Yield this rank's batches of the current task, each with samples of earlier tasks."""
        config, context = self.config, self.context
        self.learning = self._get_task_index(epoch)
        if epoch == 0:
            self.matrix.record(0, self._compute_untrained_scores())
        elif self.learning != self._get_task_index(epoch - 1):
            self._consolidate(self.learning - 1)
            self.trained_on = self._create_trained_mask()
        order = torch.randperm(self.stream.count_sequences(self.learning), generator=context.generator)[
            : self._count_samples(epoch)
        ]
        self.trained_on[order] = True  # on all ranks, including those of other ranks
        share, due = (
            config.replay.fraction / (1 - config.replay.fraction),
            0.5,
        )  # fractions of a sample are carried over
        for indices in context.shard(order, config.batch_size, shuffle=False):
            due += len(indices) * share
            yield self._build_batch(indices, self.past.recall(int(due), torch.default_generator))
            due -= int(due)

    def loss(self, batch: Batch) -> tuple[Tensor, float]:
        config, samples = self.config, batch.samples
        answer = self.network(samples.inputs, samples.dt)
        allowed = self.stream.allowed.to(batch.tasks.device)[batch.tasks]
        each = compute_losses(self.stream.kind, answer.outputs, samples.targets, allowed)
        new = len(each) - batch.recalled
        loss, penalty = each.mean(), self.past.compute_penalty()
        self.log("new_loss", each[:new].mean(), new)
        if penalty is not None:
            self.log("penalty", penalty)
            loss = loss + penalty
        if batch.recalled:
            self.log("replay_loss", each[new:].mean(), batch.recalled)
        if batch.logits is not None:
            far = self.past.measure_distance(answer.outputs[new:], batch.logits, allowed[new:])
            self.log("logits_distance", far.mean(), batch.recalled)
            loss = loss + config.replay.logits_weight * far.sum() / len(each)
        self.log("firing_rate", answer.rates.mean(), len(each))
        for layer in range(len(self.network.list_synapses())):
            self.log(f"plasticity_{layer}_firing", answer.rates[2 * layer + 1], len(each))
        if config.spiking.rate_weight:
            too_low = (config.spiking.lowest_rate - answer.rates).relu()
            too_high = (answer.rates - config.spiking.highest_rate).relu()
            loss = loss + config.spiking.rate_weight * (too_low.square() + too_high.square()).mean()
        return loss, float(len(each) * (1 if self.stream.kind == "labels" else self.stream.length))

    def after_update(self, report: UpdateReport) -> None:
        """Apply the local rules to their synapses if the update was applied. Discard their changes otherwise."""
        applied = report.outcome == "applied"
        self.past.finish_step(applied)
        for layer, synapses in enumerate(self.network.list_synapses()):
            if not applied:
                synapses.discard()
                continue
            self.context.all_reduce(synapses.get_pending())
            figures = synapses.update() or {}
            for name, value in figures.items():
                self.log(f"plasticity_{layer}_{name}", value)
            if figures.get("bound", 0) > SATURATED and layer not in self.saturated:
                self.saturated.add(layer)
                if not self.context.rank:
                    logger.warning(
                        "%.0f %% of the plastic weights of layer %d are at a bound, where a rule hardly moves them. "
                        "Lower plasticity.rate, or use another plasticity.rule.",
                        100 * figures["bound"],
                        layer,
                    )

    def evaluate(self) -> dict[str, float]:
        kind, domains = self.stream.kind, self._compute_errors()
        each = [_compute_mean(task.values()) for task in domains]
        error = _compute_mean(each)
        report = {"val/score": compute_score(kind, error)}
        if self.baseline is not None:
            report["val/score_baseline"] = self.baseline
        if kind != "labels":
            report[f"val/{ERRORS[kind]}"] = error
            report |= {f"val/{ERRORS[kind]}_{name}": value for task in domains for name, value in task.items()}
        if not math.isfinite(error) or not self.matrix.rows:  # it diverged, or training has not begun
            return report
        self.matrix.record(self.learning + 1, [compute_score(kind, value) for value in each])
        if self.stream.tasks > 1:
            names = ("average", "forgetting", "backward_transfer", "forward_transfer", "learning_accuracy")
            report |= {f"val/{name}": getattr(self.matrix, name) for name in names}
        return report

    def pictures(self) -> Mapping[str, NDArray[np.uint8]]:
        """Render the score on each task after each task, of a stream of several."""
        if self.stream.tasks == 1 or not self.matrix.rows:
            return {}
        return {
            "matrix": draw_matrix(
                self.matrix, self.stream.names, f"{_format_title(self.config.data)}: score on each task"
            )
        }

    def predict(self, inputs: Any) -> Tensor:
        """Return the outputs for sequences: for labels logits (B, outputs), else outputs per step (B, T, outputs).

        Args:
            inputs: Values (B, T, features) or bytes (B, T). Or a dict of these as `inputs` and of the time that each
                step takes as `dt`, (B, T, 1).
        """
        dt = inputs.get("dt") if isinstance(inputs, dict) else None
        with self.autocast():
            outputs: Tensor = self.network(inputs["inputs"] if isinstance(inputs, dict) else inputs, dt).outputs
        return outputs

    def example(self) -> Any:
        samples = self.stream.samples.select_rows(slice(0, 2))
        return samples.inputs if samples.dt is None else {"inputs": samples.inputs, "dt": samples.dt}

    def state_dict(self) -> dict[str, Any]:
        return {
            "matrix": self.matrix.state_dict(),
            "past": self.past.state_dict(),
            "learning": self.learning,
            "trained_on": self.trained_on.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.matrix.load_state_dict(state["matrix"])
        self.past.load_state_dict(state["past"])
        self.learning = state["learning"]
        self.trained_on = state["trained_on"].cpu().clone()

    def _load_stream(self) -> tuple[Stream, str, float | None]:
        """Return the stream, the digest of its data, and the mean score of each domain's best simple model."""
        config = self.config
        source = data.read(config.data, config.length, self.files)
        tasks = build_stream(source, config.continual.tasks, config.continual.scenario)
        if source.kind == "labels":
            return tasks, source.digest, None
        # Measured on the test sequences of the network.
        domains = [
            domain._replace(test=domain.test.select_rows(slice(config.test_samples))) for domain in source.domains
        ]
        known = {
            name: min(models.values()) for name, models in replace(source, domains=tuple(domains)).baselines.items()
        }
        error = _compute_mean(_compute_mean(known[name] for name in tests) for tests in tasks.tests)
        return tasks, source.digest, compute_score(source.kind, error)

    def _create_neurons(self, count: int) -> LIF:
        return LIF(
            count, **self.config.spiking.model_dump(exclude={"neurons", "rate_weight", "lowest_rate", "highest_rate"})
        )

    def _create_synapses(self, pre: int, post: int) -> PlasticSynapses:
        plasticity = self.config.plasticity
        pairs, target = {"tau_plus": plasticity.tau, "tau_minus": plasticity.tau}, {"target": plasticity.target_rate}
        constants = {
            "pair": pairs,
            "triplet": pairs,
            "homeostatic": pairs | target | {"strength": plasticity.homeostasis},
            "bcm": {"tau": plasticity.tau} | target,
        }
        return PlasticSynapses(
            pre,
            post,
            RULES[plasticity.rule](**constants[plasticity.rule]),
            rate=plasticity.rate,
            softness=float(plasticity.rule != "bcm"),  # BCM's threshold would converge to another rate
            stiffness=plasticity.stiffness,
            learn_rates=plasticity.meta,
        )

    def _get_task_index(self, epoch: int) -> int:
        """Return the index of the task that is learned in `epoch`. Tasks get equally many epochs, or one more."""
        return min(epoch, self.config.epochs - 1) * self.stream.tasks // self.config.epochs

    def _count_samples(self, epoch: int) -> int:
        return min(self.config.samples, self.stream.count_sequences(self._get_task_index(epoch)))

    def _build_batch(self, indices: Tensor, recalled: ReplayBatch | None) -> Batch:
        samples = self.stream.select_rows(self.learning, indices)
        tasks = torch.full((len(indices),), self.learning)
        if recalled is None:
            return Batch(samples, tasks, 0, None)
        joint = Samples.join([samples, recalled.samples])
        return Batch(joint, torch.cat([tasks, recalled.tasks]), len(recalled.tasks), recalled.logits)

    def _consolidate(self, task: int) -> None:
        """Update the memory and the penalty at the end of a task."""
        context, config = self.context, self.config
        generator = torch.Generator().manual_seed(1000 * config.seed + task)  # the same on all ranks
        share = slice(context.rank, None, context.world_size)
        seen = self.trained_on.nonzero().flatten()
        self.past.finish_task(task, config.consolidation.fisher_samples, generator, share, context.all_reduce, seen)

    def _create_trained_mask(self) -> Tensor:
        """Return a mask of the current task's sequences that were trained on, initially none."""
        return torch.zeros(self.stream.count_sequences(self.learning), dtype=torch.bool)

    @torch.no_grad()
    def _compute_untrained_scores(self) -> list[float]:
        """Return the score on each task before training."""
        self.network.eval()
        scores = [compute_score(self.stream.kind, _compute_mean(task.values())) for task in self._compute_errors()]
        self.network.train()
        return scores

    def _compute_errors(self) -> list[dict[str, float]]:
        """Return the error in each domain of each task."""
        config, context, kind = self.config, self.context, self.stream.kind
        sums: dict[str, tuple[float, float]] = {}
        for task, tests in enumerate(self.stream.tests):
            allowed = self.stream.allowed[task].to(context.device)
            for name, samples in tests.items():
                count = min(samples.size, config.test_samples)
                ends = [count * rank // context.world_size for rank in (context.rank, context.rank + 1)]
                mine = samples.select_rows(slice(*ends))  # contiguous, since windows of text follow each other
                sums[f"{task} {name}"] = measure_errors(kind, self.network, mine, allowed, TESTED)
        means = context.weighted_means(sums)
        return [{name: means[f"{task} {name}"] for name in tests} for task, tests in enumerate(self.stream.tests)]


def _compute_mean(values: Iterable[float]) -> float:
    each = list(values)
    return math.fsum(each) / len(each)


def _format_title(data: str) -> str:
    return data if data in SOURCES else Path(data).name
