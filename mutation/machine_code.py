"""Whether a change of the PTX is one of the machine code: ptxas is asked.

A change that ptxas undoes, by dropping what nobody reads or by folding what is constant, makes the
same kernel. ptxas comes with the CUDA toolkit, and as the wheel ``nvidia-cuda-nvcc``.
"""

from __future__ import annotations

import functools
import io
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from elftools.elf.elffile import ELFFile

KEPT = (".text.", ".nv.constant", ".nv.info", ".nv.shared")
"""How the names of those sections begin that decide what a kernel does."""


def same_machine_code(first: str, second: str, arch: str, ptxas: str) -> bool:
    """Whether two PTX texts give equal code for ``arch``; False where one of them is refused."""
    codes = [machine_code(text, arch, ptxas) for text in (first, second)]
    return codes[0] is not None and codes[0] == codes[1]


@functools.lru_cache(maxsize=4)
def machine_code(text: str, arch: str, ptxas: str) -> Mapping[str, bytes] | None:
    """The sections of a PTX text's machine code by name; None where ptxas refuses the text."""
    with tempfile.TemporaryDirectory(prefix="ptxas-") as folder:
        source, made = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(text, encoding="utf-8")
        ended = subprocess.run(
            [ptxas, f"-arch={arch}", str(source), "-o", str(made)], capture_output=True, check=False
        )
        if ended.returncode != 0:
            return None
        elf = ELFFile(io.BytesIO(made.read_bytes()))
        return {
            section.name: section.data()
            for section in elf.iter_sections()
            if section.name.startswith(KEPT)
        }
