"""Which confirming runs are due: of configs whose values are known beforehand."""

import random

from hypothesis import given
from hypothesis import strategies as st

from searchlight.search.schedulers.confirmation import default_runs, next_runs, num_finalists

FINALISTS = (7, 3, 9, 1)


def value_of(config, index):
    """Higher for higher numbers, lowest for the defaults."""
    return (config or 0) + 0.01 * index


def finish(runs, finalists=FINALISTS, mode="max", value=value_of, failing=(), with_defaults=True, values=None):
    """Run all that is due, one round after the other. Return the rounds, what was dropped and the values."""
    rounds, gone, known = [], set(), values or {}
    while due := next_runs(finalists, known, runs, mode, dropped=gone, with_defaults=with_defaults):
        due = [run for run in due if run[1] == due[0][1]]
        rounds.append(due)
        for config, index in due:
            if (config, index) in failing:
                gone.add(config)
            else:
                known.setdefault(config, {})[index] = value(config, index)
    return rounds, gone, known


def configs_by_round(rounds):
    return [{config for config, _ in due} for due in rounds]


def test_every_second_round_halves_the_finalists():
    rounds, _, _ = finish(20)
    four, two, one = {*FINALISTS, None}, {9, 7, None}, {9, None}
    assert configs_by_round(rounds) == [four, four, two, two, one, one]
    assert [{index for _, index in due} for due in rounds] == [{0}, {1}, {2}, {3}, {4}, {5}]


def test_all_finalists_stay_if_nothing_halves_them():
    values = {config: dict.fromkeys((0, 1), value_of(config, 0)) for config in (*FINALISTS, None)}
    assert {config for config, _ in next_runs(FINALISTS, values, 20, "max", halves=False)} == {*FINALISTS, None}


def test_finalists_with_lower_values_stay_under_min():
    assert configs_by_round(finish(20, mode="min")[0])[2:] == [{1, 3, None}, {1, 3, None}, {1, None}, {1, None}]


def test_first_finalists_stay_if_means_are_equal():
    assert configs_by_round(finish(13, value=lambda config, index: 1.0)[0])[-1] == {7, 3, None}


@given(st.integers(0, 60), st.integers(1, 6), st.booleans())
def test_rounds_are_whole_and_fit_within_the_runs(runs, count, with_defaults):
    rounds, _, _ = finish(runs, range(count), with_defaults=with_defaults)
    sizes = [len(due) for due in rounds]
    assert sum(sizes) <= runs
    assert all(size >= 2 for size in sizes)
    assert sizes == sorted(sizes, reverse=True)
    if count + with_defaults >= 2:
        smallest = sizes[-1] if sizes else count + with_defaults
        assert runs - sum(sizes) < smallest  # another round of as many does not fit
    else:
        assert sizes == []


@given(st.integers(0, 2**32), st.integers(2, 40))
def test_order_of_ends_and_kills_change_no_run(seed, runs):
    draw = random.Random(seed)
    noise = {(config, index): draw.gauss(0, 1) for config in (*FINALISTS, None) for index in range(40)}
    expected = {run for due in finish(runs, value=lambda *run: noise[run])[0] for run in due}
    values, begun, done = {}, set(), set()
    while True:
        due = next_runs(FINALISTS, values, runs, "max", begun=begun)
        assert not {*due} & (begun | done)
        begun |= {*draw.sample(due, draw.randint(min(1, len(due)), len(due)))}
        if not begun:
            break
        ended = draw.choice(sorted(begun, key=str))
        begun.remove(ended)
        values.setdefault(ended[0], {})[ended[1]] = noise[ended]
        done.add(ended)
        if draw.random() < 0.2:
            begun = set()  # a kill loses what was under way
    assert done == expected


def test_halving_waits_until_all_runs_before_it_have_ended():
    four = [(config, index) for index in (0, 1) for config in (*FINALISTS, None)]
    assert next_runs(FINALISTS, {}, 20, "max") == four
    values = {config: {0: value_of(config, 0), 1: value_of(config, 1)} for config in (7, 3, 9, None)}
    values[1] = {0: value_of(1, 0)}
    assert next_runs(FINALISTS, values, 20, "max", begun=[(1, 1)]) == []
    assert next_runs(FINALISTS, values, 20, "max") == [(1, 1)]
    values[1][1] = value_of(1, 1)
    assert next_runs(FINALISTS, values, 20, "max") == [(config, index) for index in (2, 3) for config in (7, 9, None)]


def test_nothing_waits_for_a_halving_that_keeps_all():
    assert len(next_runs([7], {}, 12, "max")) == 12
    assert len(next_runs(FINALISTS, {}, 25, "max", halves=False)) == 25


def test_failed_finalist_gets_no_more_runs_and_no_one_replaces_it():
    rounds, gone, _ = finish(20, failing=[(9, 3)])
    assert gone == {9}
    assert configs_by_round(rounds)[2:] == [{9, 7, None}, {9, 7, None}, {7, None}, {7, None}]
    rounds, _, _ = finish(20, failing=[(9, 0)])
    assert configs_by_round(rounds)[:3] == [{*FINALISTS, None}, {7, 3, 1, None}, {7, 3, None}]


def test_failed_run_counts_as_one_of_the_runs():
    assert sum(map(len, finish(7, (7, 3), failing=[(7, 0)])[0])) == 7
    assert sum(map(len, finish(7, (7, 3), failing=[(None, 1)])[0])) == 6


def test_run_that_had_begun_before_its_config_was_dropped_counts():
    configs = (7, 3, 1, None)
    values = {config: {0: 1.0} for config in configs[1:]}
    begun = [(config, 1) for config in configs]
    for runs, due in ((10, []), (11, [(3, 2), (1, 2), (None, 2)])):
        assert next_runs(configs[:-1], values, runs, "max", begun=begun, dropped=[7], halves=False) == due


def test_confirmation_ends_once_all_finalists_failed():
    rounds, _, _ = finish(20, failing=[(config, 1) for config in FINALISTS])
    assert len(rounds) == 2


def test_last_two_finalists_stay_without_defaults():
    rounds, _, _ = finish(20, with_defaults=False)
    assert configs_by_round(rounds) == [{*FINALISTS}] * 2 + [{9, 7}] * 6
    assert finish(20, [5], with_defaults=False)[0] == []


def test_more_runs_continue_what_fewer_began():
    _, _, values = finish(6, FINALISTS[:2])
    kept = {config: dict(own) for config, own in values.items()}
    rounds, _, values = finish(15, FINALISTS, values=values)
    assert configs_by_round(rounds) == [{9, 1}, {9, 1}, {9, 7, None}]
    assert all(values[config][index] == value for config, own in kept.items() for index, value in own.items())


@given(st.integers(0, 10_000), st.integers(1, 100))
def test_defaults_give_two_seeds_to_two_finalists_at_least(epochs, full):
    runs = default_runs(epochs, full)
    assert runs == max(6, epochs // full // 5)
    assert 2 <= num_finalists(runs) <= 4
    assert 2 * (num_finalists(runs) + 1) <= runs


def test_number_of_finalists_grows_with_the_runs_up_to_four():
    assert [num_finalists(runs) for runs in (1, 2, 4, 6, 8, 10, 100)] == [1, 1, 1, 2, 3, 4, 4]
    assert [num_finalists(runs, with_defaults=False) for runs in (4, 5, 6, 100)] == [2, 2, 3, 4]
