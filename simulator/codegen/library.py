"""Compiles forms to machine code, once: the result is kept in the process and on disk.

Code is found by what it depends on: the form, this package's own text, LLVM and the processor. So
programs share what they have in common and nothing stale is ever found. A file that does not hold
what its name says is compiled again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from simulator.codegen.driver import RUN_ROUNDS, RUN_WARP, emit_driver
from simulator.codegen.emit import FUNCTION, I32, PYTHON, Form
from simulator.codegen.families import translation
from simulator.errors import SimulatorBug

CACHE: Final = Path(__file__).resolve().parents[2] / ".cache" / "simulator"
"""Where objects are kept; deleting it costs a second a kernel."""

_PYTHON_SYMBOL = "always_python"
_DIGEST_BYTES = 32


class Library:
    """Machine code of forms. ``cache`` is the folder of compiled objects."""

    def __init__(self, cache: Path = CACHE) -> None:
        self._cache = cache
        self._functions: dict[Form, int] = {}
        self._engines: list[Any] = []
        self._parts: dict[str, dict[str, int]] = {}
        self.compiled = 0
        core = self._load("core", _emit_core, (RUN_WARP, RUN_ROUNDS, _PYTHON_SYMBOL))
        self.run_warp: Final = core[RUN_WARP]
        self.run_rounds: Final = core[RUN_ROUNDS]
        self.python: Final = core[_PYTHON_SYMBOL]

    def functions(self, forms: Iterable[Form]) -> dict[Form, int]:
        """The address of each form's function; missing ones are compiled together."""
        wanted = set(forms)
        missing = sorted(wanted - self._functions.keys(), key=repr)
        if missing:
            name = hashlib.sha256(repr(missing).encode()).hexdigest()
            symbols = [form.symbol for form in missing]
            found = self._load(name, functools.partial(_emit_forms, forms=missing), symbols)
            self._functions |= {form: found[form.symbol] for form in missing}
        return {form: self._functions[form] for form in wanted}

    def functions_of(self, part: str, emit: Any, symbols: Iterable[str]) -> dict[str, int]:
        """The addresses of the functions that ``emit`` writes; ``part`` is what it is called."""
        if part not in self._parts:
            self._parts[part] = self._load(part, emit, symbols)
        return self._parts[part]

    def _load(self, name: str, emit: Any, symbols: Iterable[str]) -> dict[str, int]:
        path = self._cache / hashlib.sha256(f"{_version()} {name}".encode()).hexdigest()
        code = _read(path)
        if code is None:
            module = ir.Module(name)
            emit(module)
            code = _compile(module)
            self.compiled += 1
            _write(path, code)
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
        engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
        engine.finalize_object()
        self._engines.append(engine)
        return {symbol: engine.get_function_address(symbol) for symbol in symbols}


@functools.cache
def shared_library() -> Library:
    """The library that all executors of this process share."""
    return Library()


def _emit_core(module: ir.Module) -> None:
    emit_driver(module)
    function = ir.Function(module, FUNCTION, _PYTHON_SYMBOL)
    ir.IRBuilder(function.append_basic_block()).ret(ir.Constant(I32, PYTHON))


def _emit_forms(module: ir.Module, forms: Iterable[Form]) -> None:
    for form in forms:
        emit = translation(form.find())
        if emit is None:
            raise SimulatorBug(f"{form} has no translation")
        emit(module, form)


@functools.cache
def _version() -> str:
    """Everything that machine code depends on beside the form."""
    texts = [p.read_bytes() for p in sorted(Path(__file__).parent.glob("*.py"))]
    host = (llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    parts = (
        hashlib.sha256(b"".join(texts)).hexdigest(),
        llvmlite.__version__,
        llvm.llvm_version_info,
        *host,
    )
    return repr(parts)


def _machine() -> Any:
    """A machine for this processor; an execution engine takes one for itself."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(),
        opt=1, codemodel="large", reloc="pic",
    )  # fmt: skip


def _compile(module: ir.Module) -> bytes:
    parsed = llvm.parse_assembly(str(module))
    machine = _machine()
    tuning = llvm.create_pipeline_tuning_options(speed_level=1)
    llvm.create_pass_builder(machine, tuning).getModulePassManager().run(
        parsed, llvm.create_pass_builder(machine, tuning)
    )
    code: bytes = machine.emit_object(parsed)
    return code


def _read(path: Path) -> bytes | None:
    """The object in a cache file; None if there is none, or it is not whole."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    """Keep an object; a cache that can't be written is done without."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        Path(name).replace(path)
    except OSError:
        return
