"""Compilations kept on disk, one file each, so that a second process compiles nothing."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_KEY, _PTX, _OBJECT, _ENTRY = "key.json", "kernel.ptx", "host.o", "entry"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Compiled:
    """One compilation: PTX text, host object file, and the name of the exported host function."""

    ptx: str
    host_object: bytes
    entry: str


def fetch(root: Path, key: Mapping[str, str], make: Callable[[], Compiled]) -> Compiled:
    """The compilation of ``key``: from the folder ``root``, else made and kept there.

    ``key`` names all that decides how the compilation comes out. A file that is damaged or holds
    another key is made anew; that, and a folder that cannot be written, is logged and no error.
    """
    text = json.dumps(key, sort_keys=True)
    path = root / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.zip"
    if path.is_file():
        try:
            return _read(path, text)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            logger.warning("%s is damaged and is compiled anew: %s", path, error)
    compiled = make()
    try:
        _write(path, text, compiled)
    except OSError as error:
        logger.warning("%s: this compilation is not kept: %s", root, error)
    return compiled


def _read(path: Path, text: str) -> Compiled:
    """What a file holds. The archive's checksums are checked in reading."""
    with zipfile.ZipFile(path) as archive:
        if archive.read(_KEY).decode() != text:
            raise ValueError("it holds another key")
        return Compiled(
            archive.read(_PTX).decode(), archive.read(_OBJECT), archive.read(_ENTRY).decode()
        )


def _write(path: Path, text: str, compiled: Compiled) -> None:
    """Write a file whole or not at all, whoever else writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    handle, partial = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            archive.writestr(_KEY, text)
            archive.writestr(_PTX, compiled.ptx)
            archive.writestr(_OBJECT, compiled.host_object)
            archive.writestr(_ENTRY, compiled.entry)
        os.replace(partial, path)
    finally:
        Path(partial).unlink(missing_ok=True)
