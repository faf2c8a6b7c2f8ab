"""A study in a bucket: what is written is what is read, whoever dies or wakes up in between."""

import json
import os
import signal
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from search.errors import StoreError, UsageError
from search.storage import bucket_journal, lease, requests
from search.storage.bucket_journal import BucketJournal, JournalSegment, read_records
from search.storage.journal import JournalRecords
from search.storage.lease import Lease
from trainables.filesystem.paths import RemotePath, parse_path


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name, seconds in {"CLAIM_S": 0.1, "RENEW_S": 0.2, "LEASE_S": 2.0, "LOOK_S": 0.1}.items():
        monkeypatch.setattr(lease, name, seconds)
    monkeypatch.setattr(requests, "BETWEEN_S", 0.01)


@pytest.fixture
def search(s3):
    return parse_path(s3) / "searches" / "one"


def records(search):
    return [json.loads(line)["n"] for line in read_records(search)]


def write(journal, *numbers):
    journal.append_logs([{"n": number} for number in numbers])


class Killed(BaseException):
    """The driver is gone."""


def die(journal):
    """As a driver that is killed: its lease is renewed no more, and stays."""
    journal._lease._over.set()
    journal._lease._thread.join()


class Unleased:
    """In the place of a lease, where only the journal is looked at."""

    since = 0

    def __init__(self, path, name):
        Unleased.since += 1
        self.since = Unleased.since

    def check(self):
        pass

    def release(self):
        pass


STEPS = st.lists(
    st.one_of(
        st.integers(1, 4),  # so many records are appended, and committed
        st.sampled_from(["append", "reopen", "lose", "arrives late", "zombie"]),
    ),
    max_size=12,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_what_was_committed_is_read_whatever_came_in_between(s3, monkeypatch, steps):
    search = parse_path(s3) / f"example-{time.monotonic_ns()}"
    with monkeypatch.context() as patch:
        patch.setattr(bucket_journal, "Lease", Unleased)
        patch.setattr(bucket_journal, "SEGMENT_BYTES", 30)  # three records or four
        journal, zombies = BucketJournal(search), []
        kept, pending, number = [], [], 0
        for step in steps:
            if isinstance(step, int):
                new = [*range(number, number + step)]
                write(journal, *new)
                journal.commit()
                kept, pending, number = [*kept, *pending, *new], [], number + step
            elif step == "append":
                write(journal, number)
                pending, number = [*pending, number], number + 1
            elif step == "reopen":  # the driver was killed: what it had not committed is gone
                zombies.append(journal)
                journal, pending = BucketJournal(search), []
            elif step == "zombie" and zombies:  # one that was only suspended goes on to write
                write(zombies[-1], -1, -2, -3)
                zombies[-1]._put()
            elif step in ("lose", "arrives late"):
                failing(patch, journal, step == "arrives late")
                kept, pending = [*kept, *pending], []
            assert records(search) == kept
            assert [each["n"] for each in journal.read_logs(0)] == kept + pending
        assert [each["n"] for each in JournalRecords(read_records(search)).read_logs(len(kept) // 2)] == kept[
            len(kept) // 2 :
        ]


def failing(patch, journal, late):
    """A commit whose first attempt fails, and may arrive when the second one is done."""
    put, lost = RemotePath.write_bytes, []

    def fail_once(path, content):
        if not lost and path.parent.name == "study":
            lost.append((path, bytes(content)))
            raise OSError("the connection was reset")
        return put(path, content)

    with patch.context() as within:
        within.setattr(RemotePath, "write_bytes", fail_once)
        journal.commit()
    for path, content in lost if late else ():
        put(path, content)


def test_segments_are_written_again_until_they_are_large_enough(search):
    journal = BucketJournal(search)
    for number in range(300):
        journal.append_logs([{"n": number, "text": "x" * 500}])
        journal.commit()
    journal.close()
    names = [each.name for each in (search / "study").iterdir()]
    assert [JournalSegment.from_name(name).serial for name in names] == [0, 1, 2]
    assert records(search) == [*range(300)]
    (search / "study" / ".DS_Store").write_bytes(b"")
    with pytest.raises(UsageError, match=r"one/study must hold segments of a study alone, but has \.DS_Store\. Remove"):
        BucketJournal(search)
    (search / "study" / ".DS_Store").unlink()
    (search / "study" / names[1]).unlink()
    first, last = (JournalSegment.from_name(name).first for name in (names[1], names[2]))
    with pytest.raises(UsageError, match=rf"those from {first} to {last} are missing\. Restore what was removed there"):
        read_records(search)


def test_a_second_driver_is_refused_while_the_first_one_lives_and_not_after_it_has_ended(search):
    first = BucketJournal(search)
    write(first, 1)
    with pytest.raises(
        UsageError, match=rf"^one must not be running, but another process has it open\. .* {os.getpid()} on"
    ):
        BucketJournal(search)
    first.close()
    assert not (search / "study.lock").exists()
    start = time.monotonic()
    second = BucketJournal(search)
    assert time.monotonic() - start < lease.LEASE_S, "one that has ended is not waited for"
    assert [each["n"] for each in second.read_logs(0)] == [1], "closing commits"
    second.close()


def test_of_two_that_take_a_study_at_once_one_has_it(search):
    journals, refused = [], []

    def take():
        try:
            journals.append(BucketJournal(search))
        except UsageError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(journals) == 1, refused
    assert len(refused) == 3
    journals[0].close()


def test_the_study_of_a_driver_that_was_killed_is_taken_over_and_one_that_wakes_up_stops(search, monkeypatch):
    killed = BucketJournal(search)
    write(killed, 1, 2)
    killed.commit()
    die(killed)
    successor = BucketJournal(search)
    write(successor, 3)
    successor.commit()
    killed._lease._renewed -= lease.LEASE_S  # it slept so long, whatever the server's clock of whole seconds says
    write(killed, -1)
    with pytest.raises(StoreError, match=f"one was taken up by another driver, process {os.getpid()} on .*, since"):
        killed.commit()
    with pytest.raises(StoreError, match="was taken up"):
        write(killed, -1)
    killed.close()
    assert records(search) == [1, 2, 3]
    write(successor, 4)
    successor.commit()
    successor.close()
    assert records(search) == [1, 2, 3, 4]


def test_a_claim_that_is_written_over_by_a_driver_that_wakes_up_is_made_again(search):
    path = search / "study.lock"
    suspended = Lease(path, "one")
    suspended._over.set()
    suspended._thread.join()
    successor = Lease(path, "one")
    assert successor.since >= suspended.since
    suspended._write_claim(suspended.since)  # the call in which it was suspended
    with pytest.raises(StoreError, match="was taken up by another driver"):
        suspended.check()
    successor.check()
    successor.release()


def test_a_bucket_that_was_away_for_a_while_costs_nothing_and_one_that_stays_away_ends_it(
    search, s3_server, monkeypatch, caplog
):
    monkeypatch.setattr(requests, "PATIENCE_S", 60.0)
    journal = BucketJournal(search)
    write(journal, 1)
    away = threading.Timer(lease.LEASE_S + 1, os.killpg, (s3_server._process.pid, signal.SIGCONT))
    os.killpg(s3_server._process.pid, signal.SIGSTOP)
    away.start()
    journal.commit()
    away.join()
    assert records(search) == [1]
    write(journal, 2)
    with monkeypatch.context() as patch:
        patch.setattr(requests, "PATIENCE_S", 0.5)
        patch.setattr(RemotePath, "write_bytes", lambda path, content: refuse(path))
        with pytest.raises(
            StoreError, match=r"the search's bucket was lost, and not found again in 0.5 s \(.*no route"
        ):
            journal.commit()
        assert "the search's bucket is lost: trying for 0.5 s" in caplog.text
        with pytest.raises(StoreError):
            write(journal, 3)
        journal.close()
    assert records(search) == [1]


def refuse(path):
    raise OSError(f"{path}: no route to host")
