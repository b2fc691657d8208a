"""A compilation is paid for once, and what lies on disk is believed only if it is whole."""

from __future__ import annotations

import json

import pytest

from conformance.adapters.artefacts import INDEX_FILE, OBJECT_FILE, PTX_FILE, ArtefactStore
from conformance.kernel import Compiled

KEY = {"kernel": "k", "arguments": {"page_size": 64, "shape": (2, 3)}}
COMPILED = Compiled(ptx="// π\n", host_object=b"\x7fELF\0\xff", entry="entry")


class Compiler:
    """Counts how often it is asked."""

    def __init__(self, compiled=COMPILED):
        self.calls = 0
        self.compiled = compiled

    def __call__(self):
        self.calls += 1
        return self.compiled


def never():
    raise AssertionError("compiled again")


def entries(root):
    return [path for path in root.iterdir() if path.is_dir()]


def test_compilation_is_made_once(tmp_path):
    store, compiler = ArtefactStore(tmp_path), Compiler()
    assert store.get(KEY, compiler) == COMPILED
    assert store.get(dict(reversed(KEY.items())), compiler) == COMPILED
    assert compiler.calls == 1


def test_compilation_outlives_the_process(tmp_path):
    ArtefactStore(tmp_path).get(KEY, Compiler())
    assert ArtefactStore(tmp_path).get(KEY, never) == COMPILED


@pytest.mark.parametrize(
    "other", [{**KEY, "kernel": "l"}, {**KEY, "arguments": {"page_size": 32}}, {"kernel": "k"}]
)
def test_every_part_of_the_key_counts(tmp_path, other):
    store, compiler = ArtefactStore(tmp_path), Compiler()
    store.get(KEY, compiler)
    store.get(other, compiler)
    assert compiler.calls == len(entries(tmp_path)) == 2


def change_ptx(folder):
    (folder / PTX_FILE).write_text("// another\n")


def cut_object(folder):
    (folder / OBJECT_FILE).write_bytes(b"\x7fELF")


def drop_ptx(folder):
    (folder / PTX_FILE).unlink()


def cut_index(folder):
    (folder / INDEX_FILE).write_text((folder / INDEX_FILE).read_text()[:-20])


def change_key(folder):
    index = json.loads((folder / INDEX_FILE).read_text())
    index["key"]["kernel"] = "l"
    (folder / INDEX_FILE).write_text(json.dumps(index))


def drop_entry(folder):
    index = json.loads((folder / INDEX_FILE).read_text())
    del index["entry"]
    (folder / INDEX_FILE).write_text(json.dumps(index))


def replace_index(folder):
    (folder / INDEX_FILE).write_text("[]")


@pytest.mark.parametrize(
    "damage", [change_ptx, cut_object, drop_ptx, cut_index, change_key, drop_entry, replace_index]
)
def test_damaged_entry_is_made_anew_with_a_note(tmp_path, caplog, damage):
    ArtefactStore(tmp_path).get(KEY, Compiler())
    damage(entries(tmp_path)[0])
    compiler = Compiler()
    assert ArtefactStore(tmp_path).get(KEY, compiler) == COMPILED
    assert compiler.calls == 1
    assert "is damaged and is compiled anew" in caplog.text
    assert ArtefactStore(tmp_path).get(KEY, never) == COMPILED


def test_disk_that_cannot_be_written_costs_only_a_note(tmp_path, caplog):
    root = tmp_path / "file"
    root.write_text("in the way")
    store = ArtefactStore(root)
    assert store.get(KEY, Compiler()) == COMPILED
    assert store.get(KEY, never) == COMPILED
    assert "not kept on disk" in caplog.text


def test_another_process_may_be_first(tmp_path):
    def meanwhile():
        ArtefactStore(tmp_path).get(KEY, Compiler())
        return COMPILED

    assert ArtefactStore(tmp_path).get(KEY, meanwhile) == COMPILED
    assert len(entries(tmp_path)) == 1


def test_failed_compilation_leaves_nothing(tmp_path):
    with pytest.raises(AssertionError, match="compiled again"):
        ArtefactStore(tmp_path).get(KEY, never)
    assert entries(tmp_path) == []


def test_store_keeps_itself_out_of_git(tmp_path):
    ArtefactStore(tmp_path).get(KEY, Compiler())
    assert (tmp_path / ".gitignore").read_text() == "*\n"
