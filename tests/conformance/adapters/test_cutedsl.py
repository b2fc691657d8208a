"""The DSL's compilation of a small kernel of ours, taken out of it without leaving a trace."""

from __future__ import annotations

import re

import cutlass
import pytest
from cutlass import cute
from cutlass.cutlass_dsl import CuTeDSL

from conformance.adapters import cutedsl


@cute.kernel
def copy_kernel(src: cute.Tensor, dst: cute.Tensor):
    i = cute.arch.thread_idx()[0]
    dst[i] = src[i]


@cute.jit
def copy(src: cute.Tensor, dst: cute.Tensor):
    copy_kernel(src, dst).launch(grid=[1, 1, 1], block=[32, 1, 1])


def compile_copy(options="--enable-tvm-ffi"):
    length = cute.sym_int()
    vectors = [cute.runtime.make_fake_compact_tensor(cutlass.Float32, (length,)) for _ in range(2)]
    return cute.compile(copy, *vectors, options=options)


def settings():
    values = vars(CuTeDSL._get_dsl().envar)
    return {name: values[name] for name in ("keep_ptx", "dump_dir", "lineinfo")}


def test_export_gives_ptx_object_and_entry_and_leaves_no_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = settings()
    compiled = cutedsl.export(compile_copy, "sm_100a")
    assert ".target sm_100a" in compiled.ptx
    assert re.search(r"\.visible \.entry kernel_cutlass_copy_kernel", compiled.ptx)
    assert compiled.host_object.startswith(b"\x7fELF")
    assert compiled.entry.encode() in compiled.host_object
    assert list(tmp_path.iterdir()) == []
    assert settings() == before


def test_line_information_changes_no_instruction():
    plain, located = (
        cutedsl.export(compile_copy, "sm_100a", line_info=wanted).ptx for wanted in (False, True)
    )

    def instructions(ptx):
        code = ptx[ptx.index(".visible .entry") :]
        return re.findall(r"^\s+(?!\.loc|\.file)(\S.*;)\s*$", code, re.MULTILINE)

    assert ".loc" in located
    assert ".loc" not in plain
    assert len(instructions(plain)) > 5
    assert instructions(located) == instructions(plain)


def test_settings_come_back_after_an_error():
    before = settings()

    def fail():
        raise KeyError("no kernel")

    with pytest.raises(KeyError, match="no kernel"):
        cutedsl.export(fail, "sm_100a")
    assert settings() == before


def test_toolchain_names_what_decides_a_compilation():
    facts = cutedsl.toolchain()
    assert facts["nvidia-cutlass-dsl"] == cutlass.__version__
    assert facts.keys() == {"nvidia-cutlass-dsl", "apache-tvm-ffi", "host"}
