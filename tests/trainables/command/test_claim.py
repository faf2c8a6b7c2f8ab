"""Two workers that claim the same trial: the later one gets it, once the earlier one has released it."""

import threading

from searchlight.trainables.command.claim import Claim


def test_later_claim_waits_for_the_release_of_the_earlier_one(tmp_path):
    earlier, events = Claim(tmp_path / "0"), []

    def claim_later():
        with Claim(tmp_path / "0"):
            events.append("claimed")

    with earlier:
        assert not earlier.is_lost
        later = threading.Thread(target=claim_later)
        later.start()
        while not earlier.is_lost:
            pass
        events.append("told")
        earlier.release()
        later.join(60)
    assert events == ["told", "claimed"]


def test_a_released_trial_can_be_claimed_again(tmp_path):
    for _ in range(2):
        with Claim(tmp_path / "0") as claim:
            assert not claim.is_lost
