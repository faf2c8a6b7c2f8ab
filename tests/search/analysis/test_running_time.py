from search.analysis.timeline import running_time
from tests.search.reporting.html.page_studies import START, trial


def test_the_time_between_two_drivers_is_left_out():
    trials = [
        trial(0, scores=[0.1, 0.2], gang="a"),
        trial(1, scores=[0.1, 0.2, 0.3], began=1000.0, gang="b"),
    ]
    clocked = running_time(trials)
    assert clocked.total == 50
    assert clocked.pauses == [(20, 980)]
    at = START.timestamp()
    assert [clocked.at(at - 5), clocked.at(at + 10), clocked.at(at + 500), clocked.at(at + 1010)] == [0, 10, 20, 30]


def test_what_is_shorter_than_half_a_minute_is_no_pause():
    trials = [trial(0, scores=[0.1], gang="a"), trial(1, scores=[0.1], began=35.0, gang="a")]
    assert running_time(trials).pauses == []
    assert running_time(trials).total == 45


def test_where_nothing_is_known_of_gangs_it_is_the_time_from_the_first_sign_to_the_last():
    trials = [trial(0, scores=[0.1]), trial(1, scores=[0.1], began=1000.0)]
    assert (running_time(trials).total, running_time(trials).pauses) == (1010, [])
    assert running_time([]).total == 0
