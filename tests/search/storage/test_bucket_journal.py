"""A study in a bucket: what is written is what is read, whoever dies or wakes up in between."""

import json
import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from searchlight.search.errors import StoreError, UsageError
from searchlight.search.folder import retry
from searchlight.search.storage import bucket_journal, lease
from searchlight.search.storage.bucket_journal import BucketJournal, JournalSegment, read_records
from searchlight.search.storage.journal import JournalRecords
from searchlight.trainables.filesystem.paths import RemotePath, parse_path


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name, seconds in {"CLAIM_S": 0.1, "RENEW_S": 0.2, "LEASE_S": 2.0, "LOOK_S": 0.1}.items():
        monkeypatch.setattr(lease, name, seconds)
    monkeypatch.setattr(retry, "BETWEEN_S", 0.01)


@pytest.fixture
def search(s3):
    return parse_path(s3) / "searches" / "one"


def stored(search):
    return [json.loads(line)["n"] for line in read_records(search)]


def write(journal, *numbers):
    journal.append_logs([{"n": number} for number in numbers])


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


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_committed_records_are_read_whatever_came_between(s3, monkeypatch, steps):
    search = parse_path(s3) / f"example-{time.monotonic_ns()}"
    with monkeypatch.context() as patch:
        patch.setattr(bucket_journal, "Lease", Unleased)
        patch.setattr(bucket_journal, "SEGMENT_BYTES", 60)  # three records or four
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
                commit_twice(patch, journal, step == "arrives late")
                kept, pending = [*kept, *pending], []
            assert stored(search) == kept
            assert [each["n"] for each in journal.read_logs(0)] == kept + pending
        half = len(kept) // 2
        assert [each["n"] for each in JournalRecords(read_records(search)).read_logs(half)] == kept[half:]


def commit_twice(patch, journal, late):
    """Commit with a first attempt that fails, and may arrive when the second one is done."""
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


def test_segments_grow_and_missing_ones_are_refused(search, monkeypatch):
    monkeypatch.setattr(bucket_journal, "SEGMENT_BYTES", 200)
    journal = BucketJournal(search)
    for number in range(25):
        write(journal, number)
        journal.commit()
    journal.close()
    names = [each.name for each in (search / "study").iterdir()]
    assert [JournalSegment.from_name(name).serial for name in names] == [0, 1, 2]
    assert stored(search) == [*range(25)]
    (search / "study" / ".DS_Store").write_bytes(b"")
    with pytest.raises(UsageError, match=r"one/study must hold segments of a study alone, but has \.DS_Store\. Remove"):
        BucketJournal(search)
    (search / "study" / ".DS_Store").unlink()
    (search / "study" / names[1]).unlink()
    first, last = (JournalSegment.from_name(name).first for name in (names[1], names[2]))
    with pytest.raises(UsageError, match=rf"those from {first} to {last} are missing\. Restore what was removed there"):
        read_records(search)


def test_one_of_several_drivers_gets_the_study(search):
    def take(_):
        try:
            return BucketJournal(search)
        except UsageError as error:
            return str(error)

    with ThreadPoolExecutor(4) as threads:
        first, *refused = sorted(threads.map(take, range(4)), key=lambda taken: isinstance(taken, str))
    for line in [*refused, take(0)]:
        assert re.match(rf"one must not be running, but another process has it open\. .* {os.getpid()} on", line)
    write(first, 1)
    first.close()
    assert not (search / "study.lock").exists()
    second = BucketJournal(search)
    assert [each["n"] for each in second.read_logs(0)] == [1], "closing commits"
    second.close()


def test_killed_driver_is_replaced_and_stops_if_it_wakes_up(search):
    killed = BucketJournal(search)
    write(killed, 1, 2)
    killed.commit()
    killed._lease._over.set()
    killed._lease._thread.join()
    successor = BucketJournal(search)
    write(successor, 3)
    successor.commit()
    killed._lease._renewed -= lease.LEASE_S  # it slept so long, whatever the server's clock of whole seconds says
    write(killed, -1)
    with pytest.raises(StoreError, match=f"one was resumed by another driver, process {os.getpid()} on .*, since"):
        killed.commit()
    with pytest.raises(StoreError, match="was resumed"):
        write(killed, -1)
    killed.close()
    assert stored(search) == [1, 2, 3]
    killed._lease._write_claim(killed._lease.since)  # the call in which it was suspended
    write(successor, 4)
    successor._lease._renewed -= lease.LEASE_S  # so that it looks at once, and makes its claim again
    successor.commit()
    assert successor._lease._read_claim().id == successor._lease._own.id
    successor.close()
    assert stored(search) == [1, 2, 3, 4]


@pytest.mark.slow
def test_bucket_that_comes_back_costs_nothing(search, s3_server):
    journal = BucketJournal(search)
    write(journal, 1)
    away = threading.Timer(lease.LEASE_S + 1, os.killpg, (s3_server._process.pid, signal.SIGCONT))
    os.killpg(s3_server._process.pid, signal.SIGSTOP)
    away.start()
    journal.commit()
    away.join()
    journal.close()
    assert stored(search) == [1]


def test_bucket_that_stays_away_ends_the_journal(search, monkeypatch, caplog):
    journal = BucketJournal(search)
    write(journal, 1)
    journal.commit()
    write(journal, 2)

    def refuse(path, content):
        raise OSError(f"{path}: no route to host")

    with monkeypatch.context() as patch:
        patch.setattr(retry, "PATIENCE_S", 0.1)
        patch.setattr(RemotePath, "write_bytes", refuse)
        line = r"the search's bucket was lost, and not found again in 0.1 s \(.*no route"
        with pytest.raises(StoreError, match=line):
            journal.commit()
        assert "the search's bucket is lost: trying for 0.1 s" in caplog.text
        with pytest.raises(StoreError):
            write(journal, 3)
        journal.close()
    assert stored(search) == [1]
