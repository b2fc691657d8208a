"""Mutants of our kernels' source: named edits, and the kernel that each of them makes.

An edit is a piece of a file of ``optimized/``, which must stand there exactly once, and what takes
its place. The edits lie in ``catalogue/``, one file for each class of public faults, and each names
the faults of docs/faults.md that it brings back.

A mutated kernel is the whole package, copied to a folder of its own with the edit made, and
imported from there beside the original. What it compiles is kept in that folder too, so that
mutant and original never share a compilation, unless the edit is in the wrapper, which decides
none: a compilation's key has a digest of all the files that do.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Protocol

from conformance.adapters.isolated import IsolatedPackage
from conformance.kernel import (
    Algorithm,
    Compiled,
    Kernel,
    Limits,
    Output,
    Plan,
    RunOptions,
    Support,
    UsageError,
    Wrapped,
    load_kernel,
)
from reference.inputs import Inputs
from reference.problem import Problem

ORIGINAL = "optimized"  # the kernel that is mutated, and its package
ROOT = Path(__file__).parents[1]
CATALOGUE = Path(__file__).parent / "catalogue"
COPIES = ROOT / ".cache" / "mutants"
WRAPPER = ("api.py", "errors.py", "tensors.py", "validate.py")  # no part of a compilation's key
_ADAPTER = ROOT / "conformance" / "adapters" / "optimized.py"


@dataclass(frozen=True)
class SourceMutant:
    """One edit: ``old`` becomes ``new`` in ``file``, a path in the package.

    ``faults`` are ids of docs/faults.md that it stands for, ``says`` tells what is wrong then.
    """

    id: str
    says: str
    file: str
    old: str
    new: str
    faults: tuple[str, ...]

    def applied(self, text: str) -> str:
        """The file's text with the edit; ValueError unless ``old`` stands in it exactly once."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"mutant {self.id}: old must stand in {self.file} once, not {count}")
        return text.replace(self.old, self.new)


@functools.cache
def catalogue() -> dict[str, SourceMutant]:
    """Every mutant of the catalogue by its id, in the order of the files; ValueError for two."""
    found: dict[str, SourceMutant] = {}
    for path in sorted(CATALOGUE.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            mutant = SourceMutant(**{**entry, "faults": tuple(entry["faults"])})
            if mutant.id in found:
                raise ValueError(f"{path}: mutant {mutant.id} is there twice")
            found[mutant.id] = mutant
    return found


def kernel(mutant_id: str) -> Kernel:
    """The kernel that the mutant ``mutant_id`` of the catalogue makes; UsageError if unknown."""
    mutant = catalogue().get(mutant_id)
    if mutant is None:
        raise UsageError(
            f"--kernel: 'mutant:{mutant_id}' is none of the {len(catalogue())} mutants in "
            "mutation/catalogue"
        )
    return MutatedKernel(mutant)


def copied(mutant: SourceMutant, copies: Path = COPIES) -> Path:
    """The folder that holds the mutated package, made now if it is not there yet.

    Its name has a digest of what it holds: a folder of other sources is never used again.
    """
    source = ROOT / ORIGINAL
    texts = {path.relative_to(source): path.read_bytes() for path in sorted(source.rglob("*.py"))}
    target = Path(mutant.file)
    texts[target] = mutant.applied(texts[target].decode()).encode()
    digest = hashlib.sha256()
    for path, text in texts.items():
        digest.update(f"{path}\0{len(text)}\0".encode() + text)
    folder = copies / f"{mutant.id}-{digest.hexdigest()[:12]}"
    if not folder.is_dir():
        copies.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=copies, prefix="partial-"))
        for path, text in texts.items():
            place = partial / ORIGINAL / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(text)
        if mutant.file in WRAPPER:
            (partial / ".cache").mkdir()
            (partial / ".cache" / ORIGINAL).symlink_to(ROOT / ".cache" / ORIGINAL)
        try:
            os.rename(partial, folder)
        except OSError:  # another process was first
            shutil.rmtree(partial)
    return folder


class _Adapter(Kernel, Wrapped, Protocol):
    """What the adapter of our kernel offers."""


class MutatedKernel:
    """A `conformance.kernel.Kernel`: the original's claims, and what the mutated package does.

    A mutant that takes less than the original claims is wrong, so it is asked all the same.
    """

    def __init__(self, mutant: SourceMutant, copies: Path = COPIES) -> None:
        self.name = f"mutant:{mutant.id}"
        self._original = load_kernel(ORIGINAL)
        self._package = IsolatedPackage(copied(mutant, copies), ORIGINAL)

    @property
    def arches(self) -> tuple[str, ...]:
        """Those of the original."""
        return self._original.arches

    @property
    def algorithm(self) -> Algorithm:
        """That of the original."""
        return self._original.algorithm

    @property
    def limits(self) -> Limits:
        """Those of the original."""
        return self._original.limits

    def supports(self, problem: Problem) -> Support:
        """Whether the original takes ``problem``."""
        return self._original.supports(problem)

    def plan(self, problem: Problem, num_sms: int) -> Plan:
        """What the mutant's host would choose."""
        with self._package.active():
            return self._mutated.plan(problem, num_sms)

    def specialisation_key(self, problem: Problem) -> Hashable:
        """What the original would compile."""
        return self._original.specialisation_key(problem)

    def compile(self, problem: Problem, arch: str) -> Compiled:
        """What the mutant compiles."""
        with self._package.active():
            return self._mutated.compile(problem, arch)

    def run(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        """Run one call of the mutant."""
        if self.supports(problem).ok:
            options = replace(options, ask_anyway=True)
        with self._package.active():
            return self._mutated.run(problem, inputs, options)

    @property
    def contradictions(self) -> tuple[str, ...]:
        """Those of the original."""
        assert isinstance(self._original, Wrapped)
        return self._original.contradictions

    def run_contradictory(
        self, problem: Problem, inputs: Inputs, options: RunOptions, contradiction: str
    ) -> Output:
        """Run a call of the mutant that it should refuse."""
        with self._package.active():
            return self._mutated.run_contradictory(problem, inputs, options, contradiction)

    def run_without_buffers(self, problem: Problem, inputs: Inputs, options: RunOptions) -> Output:
        """Run a call of the mutant whose results it makes itself."""
        with self._package.active():
            return self._mutated.run_without_buffers(problem, inputs, options)

    @functools.cached_property
    def _mutated(self) -> _Adapter:
        """The adapter, loaded anew so that it holds the mutated package; inside ``active()``."""
        made: _Adapter = _loaded(_ADAPTER, self.name).kernel()
        return made


def _loaded(path: Path, name: str) -> ModuleType:
    """The module in ``path``, once more, under a name of no package."""
    spec = importlib.util.spec_from_file_location(f"<adapter of {name}>", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for it
    spec.loader.exec_module(module)
    return module
