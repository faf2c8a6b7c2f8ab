"""The choice of the finalists of a search that train again, and of their new seeds.

The functions keep no state: each result follows from the values of the runs. A round trains each remaining finalist
and the defaults under one new seed, the same for all. Every second round halves the finalists (successive halving,
Karnin et al. 2013), so that most seeds go to the best finalists. Only a halving waits for all earlier runs.
"""

from collections.abc import Collection, Mapping, Sequence

from searchlight.search.space.objectives import Mode, to_loss

MOST_FINALISTS = 4
FEWEST_RUNS = 6  # two seeds for two finalists and the defaults
SHARE = 5  # full trainings of the search per confirming run
ROUNDS = 2  # between two halvings

Run = tuple[int | None, int]  # the number of a finalist (None: the defaults), and the round


def default_runs(search_epochs: int, full_length: int) -> int:
    """Return the number of runs that confirm a search of `search_epochs`, where one run takes `full_length` epochs."""
    return max(FEWEST_RUNS, search_epochs // full_length // SHARE)


def num_finalists(runs: int, with_defaults: bool = True) -> int:
    """Return the number of finalists for `runs`, at least 1. Two rounds of them and the defaults must fit."""
    return max(1, min(MOST_FINALISTS, runs // 2 - with_defaults))


def next_runs(
    finalists: Sequence[int],
    values: Mapping[int | None, Mapping[int, float]],
    runs: int,
    mode: Mode,
    *,
    begun: Collection[Run] = (),
    dropped: Collection[int | None] = (),
    with_defaults: bool = True,
    halves: bool = True,
) -> list[Run]:
    """Return the runs to start, round by round: those that are due and have neither started nor ended.

    A round is due once all runs ended that decide on its finalists, which are those before the last halving. So a gang
    waits for another one only there. The finalists of a round depend on the values of the rounds before it alone.

    Args:
        finalists: The numbers of trials, the best first. Of finalists with equal means, the first ones are kept.
        values: The values of the runs that ended, by finalist (None: the defaults) and round.
        runs: The largest number of runs. A round that would exceed it does not start.
        mode: "min" or "max", the direction of better values.
        begun: The runs that have started and not ended.
        dropped: The configs that get no more runs, because one of their runs diverged or failed. The failed run counts.
        with_defaults: Whether the defaults can be trained.
        halves: Whether every second round halves the finalists. With several objectives, all finalists stay.
    """
    configs = [*finalists, *([None] if with_defaults else [])]
    left, spent, index = configs, 0, 0
    due: list[Run] = []
    is_decided = True  # whether all runs of the rounds so far have ended
    while True:
        # A config that was dropped in a later round took part until then, so no other config replaces it.
        left = [
            config
            for config in left
            if config not in dropped or all(past in values.get(config, ()) for past in range(index))
        ]
        if halves and index and index % ROUNDS == 0 and _count_kept(left) < len(left):
            if not is_decided:
                return due
            left = _keep_better_half(left, values, index, mode)
        # One that was dropped by now may have begun this round, since rounds overlap.
        begun_before = [c for c in configs if c not in left and (index in values.get(c, ()) or (c, index) in begun)]
        spent += len(left) + len(begun_before)
        if len(left) < 2 or spent > runs:
            return due
        lacking = [(config, index) for config in left if index not in values.get(config, ()) and config not in dropped]
        is_decided = is_decided and not lacking
        due += [run for run in lacking if run not in begun]
        index += 1


def _count_kept(left: Sequence[int | None]) -> int:
    """Return how many configs a halving keeps: the better half of the finalists, and the defaults; at least two."""
    finalists = len(left) - (None in left)
    return max(2, (finalists + 1) // 2 + (None in left))


def _keep_better_half(
    left: Sequence[int | None], values: Mapping[int | None, Mapping[int, float]], rounds: int, mode: Mode
) -> list[int | None]:
    """Return the better half of the finalists by their means, and the defaults: at least two configs."""
    finalists = [config for config in left if config is not None]
    means = {config: sum(values[config][past] for past in range(rounds)) / rounds for config in finalists}
    best = sorted(finalists, key=lambda config: to_loss(means[config], mode))[: _count_kept(left) - (None in left)]
    return [config for config in left if config is None or config in best]
