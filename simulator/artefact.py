"""One call of a compiled kernel as a folder: PTX, host object, arguments and memory as it stood.

    call.json       format version, entry, arguments, and how the call was scheduled and checked
    kernel.ptx      the PTX text
    host.o          the host object; machine code for processors like the one that compiled it
    memory-0.npy    the bytes of one allocation, in which one or more of the tensors lie

``save`` writes it, ``read`` gives the call back in memory of its own, and ``python -m simulator``
runs it. ``simulator.launch.launch(..., save_to=FOLDER)`` saves a call before it runs.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.checks import USUAL, Checks
from simulator.host.link import Argument
from simulator.host.tensor import Tensor
from simulator.policy import FAIR, Policy

FORMAT_VERSION: Final = 1
CALL_FILE, PTX_FILE, OBJECT_FILE = "call.json", "kernel.ptx", "host.o"
ALIGNMENT: Final = 4096
"""An allocation is read back at the same place modulo so many bytes: alignment decides paths."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Memory:
    """An allocation that was read back; ``owner`` keeps its bytes alive."""

    owner: Bytes
    address: int
    size: int


class ArtefactError(ValueError):
    """A folder that holds no call, or a place that cannot take one; names path, value and limit."""


@dataclass(frozen=True)
class Call:
    """A call of a compiled function, ready to be launched.

    ``arguments`` are in the order of the compiled function, as ``simulator.launch.launch`` takes
    them. ``policy`` and ``checks`` are those that it ran with; ``entry`` None is the only one.
    """

    ptx: str
    host_object: bytes
    arguments: tuple[Argument, ...]
    entry: str | None = None
    policy: Policy = FAIR
    checks: Checks = USUAL

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors among the arguments, in order."""
        return tuple(a for a in self.arguments if isinstance(a, Tensor))


def save(call: Call, folder: Path) -> None:
    """Write ``call`` to ``folder``, which appears whole or not at all.

    Raises ArtefactError if there is something at ``folder`` already.
    """
    if folder.exists():
        raise ArtefactError(f"folder: {folder} is there already; a call is saved to a new one")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        (partial / PTX_FILE).write_text(call.ptx, encoding="utf-8")
        (partial / OBJECT_FILE).write_bytes(call.host_object)
        places = list(dict.fromkeys((t.storage_pointer, t.storage_bytes) for t in call.tensors))
        for number, place in enumerate(places):
            np.save(partial / _memory_file(number), _bytes_at(*place))
        described = {
            "format_version": FORMAT_VERSION,
            "entry": call.entry,
            "policy": asdict(call.policy),
            "checks": asdict(call.checks),
            "memory": [{"bytes": size, "address": start % ALIGNMENT} for start, size in places],
            "arguments": [_described(argument, places) for argument in call.arguments],
        }
        (partial / CALL_FILE).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
        partial.chmod(0o755)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read(folder: Path) -> Call:
    """The call that a folder holds, its tensors in memory of their own.

    Raises ArtefactError, naming file, field, value and what belongs there.
    """
    if not (folder / CALL_FILE).is_file():
        raise ArtefactError(f"FOLDER: {folder} holds no {CALL_FILE}, so it is no saved call")
    try:
        described = json.loads((folder / CALL_FILE).read_text(encoding="utf-8"))
        version = described["format_version"]
        if version != FORMAT_VERSION:
            raise ValueError(f"format_version {version!r} must be {FORMAT_VERSION}")
        memory = [
            _allocation(folder / _memory_file(number), known)
            for number, known in enumerate(described["memory"])
        ]
        return Call(
            ptx=(folder / PTX_FILE).read_text(encoding="utf-8"),
            host_object=(folder / OBJECT_FILE).read_bytes(),
            arguments=tuple(_argument(known, memory) for known in described["arguments"]),
            entry=described["entry"],
            policy=Policy(**described["policy"]),
            checks=Checks(**described["checks"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else str(error)
        raise ArtefactError(f"FOLDER: {folder}: {what}") from error


def _memory_file(number: int) -> str:
    return f"memory-{number}.npy"


def _bytes_at(start: int, size: int) -> Bytes:
    """A view of host memory."""
    if size == 0:
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))


def _described(argument: Argument, places: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """An argument as JSON values; floats as hex, which loses nothing."""
    match argument:
        case None:
            return {"kind": "absent"}
        case bool() | int():
            return {"kind": type(argument).__name__, "value": argument}
        case float():
            return {"kind": "float", "value": argument.hex()}
    place = (argument.storage_pointer, argument.storage_bytes)
    return {
        "kind": "tensor",
        "name": argument.name,
        "dtype": argument.dtype,
        "shape": list(argument.shape),
        "strides": list(argument.strides),
        "memory": places.index(place),
        "offset_bytes": argument.pointer - argument.storage_pointer,
        "strict": argument.strict,
        "initialised": argument.initialised,
    }


def _argument(known: Mapping[str, Any], memory: Sequence[_Memory]) -> Argument:
    match known["kind"]:
        case "absent":
            return None
        case "float":
            return float.fromhex(known["value"])
        case "int" | "bool":
            value: int | bool = known["value"]
            return value
        case "tensor":
            return _tensor(known, memory)
    raise ValueError(f"kind {known['kind']!r} is none of absent, float, int, bool, tensor")


def _tensor(known: Mapping[str, Any], memory: Sequence[_Memory]) -> Tensor:
    if not 0 <= known["memory"] < len(memory):
        raise ValueError(f"tensor {known['name']}: memory {known['memory']} of {len(memory)}")
    held = memory[known["memory"]]
    return Tensor(
        name=known["name"],
        pointer=held.address + known["offset_bytes"],
        shape=tuple(known["shape"]),
        strides=tuple(known["strides"]),
        dtype=known["dtype"],
        storage_pointer=held.address,
        storage_bytes=held.size,
        owner=held.owner,
        strict=known["strict"],
        initialised=known["initialised"],
    )


def _allocation(path: Path, known: Mapping[str, int]) -> _Memory:
    """The bytes of a file in fresh memory, at the place modulo ``ALIGNMENT`` that they had."""
    held = np.load(path, allow_pickle=False)
    if held.dtype != np.uint8 or held.shape != (known["bytes"],):
        raise ValueError(
            f"{path.name} holds {held.dtype}{list(held.shape)}, not uint8[{known['bytes']}]"
        )
    room = np.empty(held.nbytes + ALIGNMENT, np.uint8)
    start = (known["address"] - room.ctypes.data) % ALIGNMENT
    room[start : start + held.nbytes] = held
    return _Memory(room, room.ctypes.data + start, held.nbytes)


VIEWED_AS: Final = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8",
                    "float8_e8m0fnu": "uint8"}  # fmt: skip
"""Element types that numpy lacks, and the integers of their size that their bits are shown as."""


def lies_inside(tensor: Tensor) -> bool:
    """Whether all elements of a tensor lie in its allocation, as a wrong caller's may not."""
    first = last = tensor.pointer - tensor.storage_pointer
    for extent, stride in zip(tensor.shape, tensor.strides, strict=True):
        reach = (extent - 1) * stride * tensor.item_bytes
        first, last = first + min(reach, 0), last + max(reach, 0)
    return 0 in tensor.shape or (first >= 0 and last + tensor.item_bytes <= tensor.storage_bytes)


def contents(tensor: Tensor) -> npt.NDArray[Any]:
    """A copy of a tensor's elements; those of a type that numpy lacks as their bits.

    Raises ``ValueError`` unless it ``lies_inside`` its allocation.
    """
    dtype = np.dtype(VIEWED_AS.get(tensor.dtype, tensor.dtype))
    base = _bytes_at(tensor.storage_pointer, tensor.storage_bytes)
    if 0 in tensor.shape:
        return np.zeros(tensor.shape, dtype)
    strides = [stride * tensor.item_bytes for stride in tensor.strides]
    offset = tensor.pointer - tensor.storage_pointer
    return np.ndarray(tensor.shape, dtype, base.data, offset, strides).copy()
