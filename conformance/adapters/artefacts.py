"""A store of compilations, so that each is paid for once: in memory, and on disk across runs.

On disk an entry is a folder named after the SHA-256 of its key. It appears whole or not at all, so
several processes may share a store.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from conformance.kernel import Compiled

ROOT = Path(__file__).parents[2] / ".cache" / "kernels"
PTX_FILE, OBJECT_FILE, INDEX_FILE = "kernel.ptx", "host.o", "index.json"

logger = logging.getLogger(__name__)


class ArtefactStore:
    """Compilations by key. A key is a JSON object that names everything the compiler was given."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._memory: dict[str, Compiled] = {}

    def get(self, key: Mapping[str, Any], make: Callable[[], Compiled]) -> Compiled:
        """The compilation of ``key``: from memory, else from disk, else made and kept.

        An entry on disk that does not hold what it says is made anew, and a note is logged; so is
        one when the disk cannot be written.
        """
        name = _digest(_canonical(key).encode())
        if name not in self._memory:
            self._memory[name] = self._from_disk(name, key) or self._made(name, key, make)
        return self._memory[name]

    def _from_disk(self, name: str, key: Mapping[str, Any]) -> Compiled | None:
        folder = self._root / name
        if not folder.is_dir():
            return None
        try:
            return _read(folder, key)
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s is damaged and is compiled anew: %s", folder, error)
            shutil.rmtree(folder, ignore_errors=True)
            return None

    def _made(self, name: str, key: Mapping[str, Any], make: Callable[[], Compiled]) -> Compiled:
        compiled = make()
        try:
            self._write(name, key, compiled)
        except OSError as error:
            logger.warning("%s: this compilation is not kept on disk: %s", self._root, error)
        return compiled

    def _write(self, name: str, key: Mapping[str, Any], compiled: Compiled) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        (self._root / ".gitignore").write_text("*\n", encoding="utf-8")
        partial = Path(tempfile.mkdtemp(prefix="partial-", dir=self._root))
        try:
            contents = {PTX_FILE: compiled.ptx.encode(), OBJECT_FILE: compiled.host_object}
            for file, data in contents.items():
                (partial / file).write_bytes(data)
            digests = {file: _digest(data) for file, data in contents.items()}
            index = {"key": key, "entry": compiled.entry, "sha256": digests}
            (partial / INDEX_FILE).write_text(json.dumps(index, indent=1), encoding="utf-8")
            if not (self._root / name).is_dir():  # else another process was first
                partial.rename(self._root / name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _read(folder: Path, key: Mapping[str, Any]) -> Compiled:
    index = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
    if _canonical(index["key"]) != _canonical(key):
        raise ValueError(f"{INDEX_FILE} is that of another key")
    contents = {file: (folder / file).read_bytes() for file in (PTX_FILE, OBJECT_FILE)}
    for file, data in contents.items():
        if _digest(data) != index["sha256"][file]:
            raise ValueError(f"{file} has changed since it was written")
    return Compiled(contents[PTX_FILE].decode(), contents[OBJECT_FILE], index["entry"])


def _canonical(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True, separators=(",", ":"))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
