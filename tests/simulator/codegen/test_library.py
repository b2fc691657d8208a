"""Compiled code: kept on disk, found again, and compiled again where the disk is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulator.codegen import library as library_module
from simulator.codegen.image import forms
from simulator.codegen.library import Library
from simulator.decode import decode
from simulator.interpreter import Interpreter
from simulator.native import NativeExecutor
from simulator.ptx.parser import parse
from tests.simulator.codegen.machine import Bench
from tests.simulator.ptx_text import module

PROGRAM = decode(parse(module("add.s32 %r1, %r2, 5; xor.b32 %r3, %r1, %r2;")).kernels["k"])


def test_a_second_library_compiles_nothing(tmp_path: Path) -> None:
    first = Library(tmp_path)
    first.functions(forms(PROGRAM))
    assert first.compiled == 2
    assert len(list(tmp_path.iterdir())) == 2
    second = Library(tmp_path)
    assert second.functions(forms(PROGRAM)).keys() == forms(PROGRAM)
    assert second.compiled == 0


@pytest.mark.parametrize("content", [b"", b"torn", bytes(4096)])
def test_a_corrupt_object_is_compiled_again(tmp_path: Path, content: bytes) -> None:
    Library(tmp_path).functions(forms(PROGRAM))
    for path in tmp_path.iterdir():
        path.write_bytes(content)
    again = Library(tmp_path)
    again.functions(forms(PROGRAM))
    assert again.compiled == 2
    assert Library(tmp_path).compiled == 0


def test_code_of_another_version_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Library(tmp_path)
    monkeypatch.setattr(library_module, "_version", lambda: "another processor")
    assert Library(tmp_path).compiled == 1


def test_a_folder_that_can_not_be_written_is_done_without(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    assert Library(file / "cache").functions(forms(PROGRAM))


def test_only_forms_that_are_new_are_compiled(tmp_path: Path) -> None:
    library = Library(tmp_path)
    library.functions(forms(PROGRAM))
    library.functions(forms(PROGRAM))
    assert library.compiled == 2


def test_an_instruction_without_translation_runs_all_the_same() -> None:
    """``tanh`` has none: the table's own function answers, in place."""
    from simulator.isa.families import TABLE

    (entry,) = TABLE["tanh.approx.f32"]
    bench = Bench(live=True)
    values = np.linspace(-3, 3, 32, dtype=np.float32)
    bench.add(entry, [values])
    bench.add(TABLE["neg.f32"][0], [values])
    _, expected = bench.run(Interpreter)
    runner, actual = bench.run(NativeExecutor)
    assert isinstance(runner, NativeExecutor)
    assert len(runner._single) == 1
    for want, got in zip(expected, actual, strict=True):
        assert (want == got).all()
