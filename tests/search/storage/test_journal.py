"""What becomes of a journal that is broken when it is opened, and what memory it needs."""

import json

import pytest
from optuna.samplers import RandomSampler

from searchlight.search.errors import StoreError, UsageError
from searchlight.search.storage.study_store import open_store
from searchlight.search.study.record import load_search
from searchlight.search.study.study import create_study
from searchlight.search.study.trial import get_reports
from searchlight.trainables.filesystem.paths import parse_path
from tests.search.objectives import VAL_LOSS
from tests.search.study.played_studies import SPACE


@pytest.fixture
def folder(tmp_path):
    """The folder of a search with a study of three trials."""
    folder = tmp_path / "one"
    folder.mkdir()
    write_study(folder)
    return folder


def write_study(place):
    study, store = create_study(place, RandomSampler, [VAL_LOSS])
    for _ in range(3):
        study.ask(SPACE)
    store.close()


def reopen(folder):
    open_store(folder).close()
    return (folder / "study.journal").read_bytes()


@pytest.mark.parametrize("torn", [b"{", b'{"op_code":8,"worker_id":"a', b'{"op_code":8}'])
def test_torn_last_record_is_cut_without_a_copy(folder, caplog, torn):
    journal = folder / "study.journal"
    text = journal.read_bytes()
    journal.write_bytes(text + torn)
    assert len(load_search(folder).trials) == 3, "the driver may be writing the record"
    assert reopen(folder) == text
    assert [path.name for path in folder.glob("*.broken-*")] == []
    assert caplog.text == ""
    journal.write_bytes(torn)
    assert reopen(folder) == b"", "the first record"


@pytest.mark.parametrize(
    "end", [b"\0" * 5000, b'{"op_code":8,"wor' + b"\0" * 100 + b'ker\n{"op', b"{}\n", b"text\nmore\n"]
)
def test_broken_end_is_cut_after_the_user_has_a_copy(folder, caplog, end):
    journal = folder / "study.journal"
    text = journal.read_bytes()
    for number in (1, 2):
        caplog.clear()
        journal.write_bytes(text + end)
        assert reopen(folder) == text
        copy = folder / f"study.journal.broken-{number}"
        assert copy.read_bytes() == text + end
        line = text.count(b"\n") + 1
        assert [record.message for record in caplog.records] == [
            f"line {line} of {journal} and all that follows is broken, and is cut. The file as it was is {copy}."
        ]


def test_study_without_room_is_one_line_and_resumes_later(folder, monkeypatch):
    before, store = reopen(folder), open_store(folder)
    line = r"study\.journal cannot be written: \[Errno 28\] No space left on device$"
    with open("/dev/full", "ab", buffering=0) as full, monkeypatch.context() as patch:
        patch.setattr(store.storage._backend, "_file", full)
        with pytest.raises(StoreError, match=line):
            store.storage.create_new_trial(0)
    with pytest.raises(StoreError, match=line):
        store.close()
    assert reopen(folder) == before


def test_broken_end_stays_if_it_cannot_be_copied(folder, monkeypatch):
    broken = (folder / "study.journal").read_bytes() + b"text\n"
    (folder / "study.journal").write_bytes(broken)

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copy", refuse)
    with pytest.raises(OSError, match="No space left"):
        open_store(folder)
    assert (folder / "study.journal").read_bytes() == broken
    monkeypatch.undo()
    open_store(folder).close()


@pytest.mark.parametrize("text", [b"{}\n", b"[]\n[]\n", b"SQLite format 3\0" + b"\0" * 5000, b"a letter", b"[" * 9999])
def test_file_that_is_no_journal_is_refused_and_unchanged(folder, text):
    journal = folder / "study.journal"
    journal.write_bytes(text)
    with pytest.raises(
        UsageError, match=rf"^{journal} must be the journal of a study, but no line of it is a record\."
    ):
        open_store(folder)
    assert journal.read_bytes() == text
    with pytest.raises(UsageError, match=r"study\.journal (must be the journal of a study, but line 1 is no|is empty)"):
        load_search(folder)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (b"{}\n", r"line 2 .*must be a record, but is not, and more records follow\. Restore the file"),
        (b"\0" * 5000 + b"\n", r"line 2 .*must be a record, but is not, and more records follow\. Restore the file"),
        (b'{"op_code":99}\n', r"must be the journal of a study, but Optuna raises AssertionError"),
        (b'{"op_code":8}\n', r"must be the journal of a study, but Optuna raises KeyError"),
    ],
)
def test_broken_line_before_others_is_refused_in_one_line(folder, line, rule):
    journal = folder / "study.journal"
    first, rest = journal.read_bytes().split(b"\n", 1)
    text = first + b"\n" + line + rest
    journal.write_bytes(text)
    for open_study in (open_store, load_search):
        with pytest.raises(UsageError, match=rule if open_study is open_store else "must be the journal") as error:
            open_study(folder)
        assert len(str(error.value).splitlines()) == 1
    assert journal.read_bytes() == text


def without_first(lines):
    return lines[1:]


def without_one_within(lines):
    return [*lines[:3], *lines[4:]]


def swapped(lines):
    return [*lines[:3], lines[4], lines[3], *lines[5:]]


def with_the_end_twice(lines):
    return [*lines, *lines[-2:]]


CHANGES = [without_first, without_one_within, swapped, with_the_end_twice]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_journal_without_each_record_once_is_refused_and_unchanged(folder, change):
    journal = folder / "study.journal"
    lines = change(journal.read_bytes().splitlines(keepends=True))
    journal.write_bytes(b"".join(lines))
    first = next(number for number, line in enumerate(lines, start=1) if json.loads(line)["line"] != number)
    rule = rf"^{journal} must be the journal of a study, but line {first} is record \d+ of it\. Restore it\.$"
    for open_study in (open_store, load_search):
        with pytest.raises(UsageError, match=rule):
            open_study(folder)
    assert journal.read_bytes() == b"".join(lines)


def test_journal_of_an_older_version_is_continued_if_it_begins_with_its_study(folder):
    journal = folder / "study.journal"
    older = [json.loads(line) for line in journal.read_bytes().splitlines()]
    assert [record.pop("line") for record in older] == [*range(1, len(older) + 1)]
    journal.write_text("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in older))
    write_study(folder)
    assert len(load_search(folder).trials) == 6
    added = [json.loads(line) for line in journal.read_bytes().splitlines()][len(older) :]
    assert [record["line"] for record in added] == [*range(len(older) + 1, len(older) + len(added) + 1)]
    text = b"".join(journal.read_bytes().splitlines(keepends=True)[1 : len(older)])
    journal.write_bytes(text)
    for open_study in (open_store, load_search):
        with pytest.raises(UsageError, match=r"but line 1 does not create a study\. Restore it\.$"):
            open_study(folder)
    assert journal.read_bytes() == text


def test_names_of_metrics_are_held_once_for_all_reports(tmp_path):
    study, store = create_study(tmp_path, RandomSampler, [VAL_LOSS])
    for number in range(2):
        study.ask(SPACE)
        for epoch in (1, 2):
            study.report(number, epoch, 0.5, {"metrics": {"val/loss": 0.5}, "time": 0.0})
    names = {id(name) for trial in study.get_trials() for report in get_reports(trial).values() for name in report}
    assert len(names) == len({"metrics", "time"})
    store.close()


def test_broken_line_in_a_bucket_is_refused_and_frees_the_lease(s3):
    place = parse_path(s3) / "searches" / "one"
    write_study(place)
    segment = next(path for path in (place / "study").iterdir() if path.read_bytes())
    first, second, third, *rest = segment.read_bytes().splitlines(keepends=True)
    for broken, reason in (([b"{}\n", second], "no record"), ([third, second], "record 3 of it")):
        segment.write_bytes(b"".join([first, *broken, *rest]))
        for open_study in (open_store, load_search):
            with pytest.raises(
                UsageError, match=rf"one/study must be the journal of a study, but line 2 is {reason}\."
            ):
                open_study(place)
    assert not (place / "study.lock").exists()
