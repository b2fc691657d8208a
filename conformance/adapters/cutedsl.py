"""What the CuTe DSL makes of a kernel: PTX, host object and entry. No GPU, no stray files."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any
from unittest import mock

from conformance.kernel import Compiled

_PREFIX = "kernel"  # of the exported symbols
_ENTRY = _PREFIX + "___tvm_ffi_{}"  # the DSL's name for the exported host function


def export(compile_kernel: Callable[[], Any], arch: str, *, line_info: bool = False) -> Compiled:
    """The compilation that ``compile_kernel`` makes when it is called for ``arch``, as ``sm_100a``.

    It must return what ``cute.compile`` gives with ``--enable-tvm-ffi``. ``line_info`` puts source
    lines into the PTX, whose instructions stay the same; compiling then takes twice as long.
    Not for two threads at once: the DSL has one set of settings. Raises RuntimeError if the DSL
    hands out no PTX.
    """
    with _settings(arch, line_info):
        compiled = compile_kernel()
        ptx, host_object = compiled.__ptx__, compiled.dump_to_object(_PREFIX)
    entry = _ENTRY.format(compiled.function_name)
    if not ptx or entry.encode() not in host_object:
        raise RuntimeError(
            f"nvidia-cutlass-dsl {metadata.version('nvidia-cutlass-dsl')}: the compilation of "
            f"{compiled.function_name} has no PTX or no entry {entry}"
        )
    return Compiled(ptx=ptx, host_object=host_object, entry=entry)


def toolchain() -> dict[str, str]:
    """What, besides the kernel's own parameters, decides how a compilation comes out.

    The host object holds machine code for the processor it was made on, so that is part of it.
    """
    import llvmlite.binding as llvm

    return {
        "nvidia-cutlass-dsl": metadata.version("nvidia-cutlass-dsl"),
        "apache-tvm-ffi": metadata.version("apache-tvm-ffi"),
        "host": f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}",
    }


@contextmanager
def _settings(arch: str, line_info: bool) -> Iterator[None]:
    """Sets the DSL to keep the PTX, and to say nothing: its warnings are the kernel author's.

    The DSL reads its settings from the environment once, when it is first imported, and somebody
    may have done that already; so they are set where it keeps them.
    """
    from cutlass.cutlass_dsl import CuTeDSL

    with (
        tempfile.TemporaryDirectory(prefix="cutedsl-") as folder,
        mock.patch.multiple(
            CuTeDSL._get_dsl().envar, arch=arch, keep_ptx=True, dump_dir=folder, lineinfo=line_info
        ),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield
