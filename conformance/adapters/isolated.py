"""A package loaded from a folder of its own, so that several versions of it fit in one process."""

from __future__ import annotations

import importlib
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

_lock = threading.RLock()  # sys.modules is the process's, so is the turn to fill it


class IsolatedPackage:
    """The package ``name`` as it lies in ``folder``, importable only inside ``active()``."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._modules: dict[str, ModuleType] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Makes ``import name`` mean this package; afterwards it means what it meant before.

        Its modules are imported once and set aside in between. It nests. Threads take turns.
        """
        with _lock:
            outside = self._take()
            sys.modules.update(self._modules)
            sys.path.insert(0, str(self._folder))
            try:
                yield
            finally:
                sys.path.remove(str(self._folder))
                self._modules.update(self._take())
                sys.modules.update(outside)

    def module(self, name: str) -> ModuleType:
        """Its module ``name``, dotted and without the package's own name; inside ``active()``.

        What it warns about while it is imported is its author's affair and is not shown.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module(f"{self._name}.{name}")
        self._modules.update(self._present())
        return module

    def _present(self) -> dict[str, ModuleType]:
        return {
            name: module
            for name, module in sys.modules.items()
            if name.partition(".")[0] == self._name
        }

    def _take(self) -> dict[str, ModuleType]:
        modules = self._present()
        for name in modules:
            del sys.modules[name]
        return modules
