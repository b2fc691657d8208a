"""The corpus keeps every fault, says what it cannot read or write, and loses nothing."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.kernel import UsageError
from fuzz.corpus import Corpus, Entry, StorageError
from reports.records import CaseResult
from tests.conformance import cases


def entry(seed: int = 1, error: str | None = None, *, is_minimal: bool = False) -> Entry:
    case = cases.case(1, property_name="matches_float64", seed=seed)
    return Entry(CaseResult(case, "failed", error_class=error, reason="off"), is_minimal, {})


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def corpus(tmp_path: Path, warnings: list[str]) -> Corpus:
    return Corpus(tmp_path / "corpus", warnings.append)


def test_entries_come_back_grouped_with_the_minimal_one_first(corpus: Corpus) -> None:
    kept = [entry(1), entry(2), entry(3, is_minimal=True), entry(4, "OutOfBounds")]
    paths = [corpus.add(one) for one in kept]
    assert len({path.parent for path in paths}) == 2
    assert all(path.stem == one.case.id for path, one in zip(paths, kept, strict=True))
    found = list(corpus.entries())
    assert sorted(found, key=lambda e: e.case.seed) == kept
    assert next(e for e in found if e.signature == kept[0].signature) == kept[2]


def test_an_entry_is_found_by_the_beginning_of_its_case_or_fault(corpus: Corpus) -> None:
    kept = entry(1)
    corpus.add(kept)
    assert corpus.find(kept.case.id[:8]) == corpus.find(kept.signature.id) == [kept]
    with pytest.raises(UsageError, match=r"'ffff' is no case and no fault of the corpus"):
        corpus.find("ffff")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace('"seed": 1', '"seed": 7'),
        lambda text: text.replace('"schema_version": 1', '"schema_version": 9'),
        lambda text: text.replace('"verdict": "failed"', '"verdict": "fine"'),
    ],
    ids=["torn", "empty", "foreign", "another case", "a later version", "no verdict"],
)
def test_a_corrupt_file_is_named_and_left_and_costs_nothing_else(
    corpus: Corpus, warnings: list[str], spoil
) -> None:
    path = corpus.add(entry(1))
    other = entry(2)
    corpus.add(other)
    spoilt = spoil(path.read_text(encoding="utf-8"))
    assert spoilt != path.read_text(encoding="utf-8")
    path.write_text(spoilt, encoding="utf-8")
    assert list(corpus.entries()) == [other]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{path}: passed over: ")
    assert path.read_text(encoding="utf-8") == spoilt


def test_a_corpus_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    """A file where the folder should be: root, who may write anything, cannot either."""
    (tmp_path / "corpus").write_text("")
    with pytest.raises(UsageError, match=r"--corpus: .*corpus cannot be written: "):
        Corpus(tmp_path / "corpus", print).require_writable()


def test_a_read_only_corpus_is_refused_for_writing_and_can_be_read(
    corpus: Corpus, tmp_path: Path
) -> None:
    kept = entry(1)
    corpus.add(kept)
    mount(tmp_path, "--bind", str(corpus.root), str(corpus.root))
    mount(tmp_path, "-o", "remount,ro,bind", str(corpus.root))
    try:
        with pytest.raises(UsageError, match="cannot be written: Read-only file system"):
            corpus.require_writable()
        assert list(corpus.entries()) == [kept]
    finally:
        subprocess.run(["umount", corpus.root], check=True)


def test_a_full_disk_stops_with_the_case_in_the_message(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount(tmp_path, "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk))
    try:
        corpus = Corpus(disk, print)
        kept = entry(1)
        corpus.add(kept)
        with pytest.raises(StorageError, match="No space left on device") as raised:
            _ = [corpus.add(entry(seed)) for seed in range(2, 100)]
        written = list(corpus.entries())
        assert written[0] == kept or kept in written
        lost = json.loads(str(raised.value).splitlines()[-1])
        assert lost not in [one.case.to_json() for one in written]
        assert lost["seed"] == len(written) + 1
        assert not list(disk.rglob("partial-*"))
    finally:
        subprocess.run(["umount", disk], check=True)


def mount(tmp_path: Path, *arguments: str) -> None:
    """Mount, or skip the test where this user may not."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to mount: {done.stderr.strip()}")


def test_two_campaigns_may_write_the_same_corpus(corpus: Corpus, tmp_path: Path) -> None:
    """Four processes add overlapping entries at once: all are there, whole."""
    pids = []
    for worker in range(4):
        pid = os.fork()
        if pid == 0:
            for seed in range(40):
                corpus.add(entry(seed + 10 * worker, is_minimal=seed % 2 == 0))
            os._exit(0)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    assert {one.case.seed for one in corpus.entries()} == set(range(70))


def test_a_minimal_entry_replaces_the_case_it_was(corpus: Corpus) -> None:
    corpus.add(entry(1))
    corpus.add(replace(entry(1), is_minimal=True))
    corpus.add(entry(1))
    assert [one.is_minimal for one in corpus.entries()] == [True]
