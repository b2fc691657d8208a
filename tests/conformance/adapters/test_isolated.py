"""Two versions of one package live in one process, and neither is seen outside."""

from __future__ import annotations

import sys
import types

import pytest

from conformance.adapters.isolated import IsolatedPackage

NAME = "package_in_two_versions"


@pytest.fixture
def versions(tmp_path):
    def make(number):
        folder = tmp_path / f"v{number}" / NAME
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("import warnings; warnings.warn('old style')\n")
        (folder / "helper.py").write_text(f"version = {number}\n")
        (folder / "main.py").write_text(
            f"from {NAME}.helper import version\n"
            "def late():\n"
            f"    from {NAME} import helper\n"
            "    return helper.version\n"
        )
        return IsolatedPackage(folder.parent, NAME)

    return make(1), make(2)


def test_each_sees_its_own_modules_early_and_late(versions):
    for _ in range(2):
        for number, package in enumerate(versions, start=1):
            with package.active():
                main = package.module("main")
                assert (main.version, main.late()) == (number, number)


def test_modules_are_imported_once(versions):
    modules = []
    for _ in range(2):
        with versions[0].active():
            modules.append(versions[0].module("main"))
    assert modules[0] is modules[1]


def test_nothing_stays_behind(versions):
    before = list(sys.path)
    with versions[0].active():
        versions[0].module("main")
        assert f"{NAME}.helper" in sys.modules
    assert [name for name in sys.modules if name.startswith(NAME)] == []
    assert sys.path == before


def test_package_of_that_name_outside_comes_back(versions, monkeypatch):
    outside = types.ModuleType(NAME)
    monkeypatch.setitem(sys.modules, NAME, outside)
    with versions[0].active():
        assert versions[0].module("helper").version == 1
    assert sys.modules[NAME] is outside


def test_package_of_that_name_comes_back_after_an_error(versions, monkeypatch):
    outside = types.ModuleType(NAME)
    monkeypatch.setitem(sys.modules, NAME, outside)
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        _import_what_is_not_there(versions[0])
    assert sys.modules[NAME] is outside


def _import_what_is_not_there(package):
    with package.active():
        package.module("nowhere")


def test_they_nest(versions):
    first, second = versions
    with first.active():
        helper = first.module("helper")
        with second.active():
            assert second.module("helper").version == 2
            with first.active():
                assert first.module("helper") is helper
        assert first.module("helper") is helper
