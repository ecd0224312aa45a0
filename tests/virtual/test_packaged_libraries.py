"""Libraries of the package `anyrig-virtual`: which is taken, and which is refused for what reason.

A small real extension stands for the backend, as in test_build.py.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from anyrig.errors import NoCompilerError
from anyrig.virtual import build, packaged_libraries
from anyrig.virtual.compiler import MODULE_NAME
from anyrig.virtual.packaged_libraries import PackagedLibrary, find_packaged
from anyrig.virtual.torch_files import TorchFiles

SOURCE = """
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "anyrig_virtual_extension"};
PyMODINIT_FUNC PyInit_anyrig_virtual_extension() { return PyModule_Create(&definition); }
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("csrc")
    (folder / "module.cpp").write_text(SOURCE)
    return folder


@pytest.fixture(scope="module")
def compiled(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of `sources`, which a cache holds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return build.build_extension(sources)


@pytest.fixture
def package(compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The installed package, with the library; the cache is empty, and there is no compiler."""
    site_packages = tmp_path / "site-packages"
    package = site_packages / "anyrig_virtual"
    shutil.copytree(compiled.parent, package / compiled.parent.parent.name)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(site_packages))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "absent-g++")
    return package


def library_in(package: Path) -> Path:
    return next(package.rglob("*.so"))


def truncate(library: Path) -> None:
    os.truncate(library, library.stat().st_size // 2)


def forget_the_hash(library: Path) -> None:
    library.with_name(f"{library.name}.sha256").unlink()


def open_to_all(library: Path) -> None:
    library.parent.parent.parent.chmod(0o757)  # any user could replace the package


def open_to_a_group(library: Path) -> None:
    others = next(group for group in range(60000, 61000) if group != os.getgid())
    os.chown(library, -1, others)
    library.chmod(0o775)


def give_away(library: Path) -> None:
    os.chown(library, 54321, -1)


def test_a_library_that_fits_needs_no_compiler(
    package: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build.build_extension(sources) == library_in(package)
    # Loading leaves the module there, where later tests would take it for the backend.
    monkeypatch.setitem(sys.modules, MODULE_NAME, ModuleType(MODULE_NAME))
    assert build.load_library(library_in(package)).__name__ == "anyrig_virtual_extension"


def test_where_each_user_has_a_group_the_group_may_write(package: Path, sources: Path) -> None:
    library = library_in(package)
    found = library.stat()
    if not packaged_libraries._is_group_of_one(found.st_gid, found.st_uid):
        pytest.skip(f"group {found.st_gid} is not the private group of user {found.st_uid}")
    for path in (package.parent, package, library.parent, library):
        path.chmod(path.stat().st_mode | stat.S_IWGRP)
    assert build.build_extension(sources) == library


@pytest.mark.parametrize(("others", "is_taken"), [([], True), (["somebody"], False)])
def test_a_group_of_the_same_name_may_write_if_it_has_no_other_members(
    others: list[str],
    is_taken: bool,
    package: Path,
    sources: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = library_in(package)
    user = pwd.getpwuid(library.stat().st_uid)
    group = grp.struct_group((user.pw_name, "x", user.pw_gid, [user.pw_name, *others]))
    monkeypatch.setattr(grp, "getgrgid", {user.pw_gid: group}.__getitem__)
    os.chown(library, -1, user.pw_gid)
    library.chmod(0o775)
    if is_taken:
        assert build.build_extension(sources) == library
    else:
        with pytest.raises(NoCompilerError, match=f"group {user.pw_gid} could have changed "):
            build.build_extension(sources)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "is damaged; install anyrig-virtual again"),
        (forget_the_hash, "cannot be read: "),
        (open_to_all, "every user could have changed "),
        pytest.param(
            open_to_a_group,
            " could have changed ",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to groups"),
        ),
        pytest.param(
            give_away,
            "user 54321 could have changed ",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away"),
        ),
    ],
)
def test_a_library_that_is_damaged_or_open_to_others_is_compiled_instead(
    damage: Callable[[Path], None],
    reason: str,
    package: Path,
    sources: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    damage(library_in(package))
    with pytest.raises(NoCompilerError, match=f"anyrig-virtual does not help: .*{reason}"):
        build.build_extension(sources)
    monkeypatch.delenv("CXX")
    library = build.build_extension(sources)
    assert library.is_relative_to(build.cache_folder())
    said = capfd.readouterr().err
    assert said.startswith("anyrig: no compiled library is used: ")
    assert reason in said
    assert build.build_extension(sources) == library
    assert capfd.readouterr().err == ""


def test_a_library_of_other_sources_is_compiled_instead(package: Path, sources: Path) -> None:
    library_in(package).parent.rename(package / "2.13.0-cpython-311-x86_64-linux-gnu-0123")
    (package / "2.9.1-cpython-310-x86_64-linux-gnu-0123").mkdir()
    words = "it was compiled for PyTorch 2.9.1, 2.13.0, CPython 3.10, 3.11, and the sources of"
    with pytest.raises(NoCompilerError, match=words):
        build.build_extension(sources)


def test_what_was_compiled_again_has_precedence(
    package: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX")
    library = build.build_extension(sources, again=True)
    assert library != library_in(package)
    assert build.build_extension(sources) == library
    truncate(library)
    assert build.build_extension(sources) == library_in(package)


def test_without_the_package_the_error_names_it(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged_libraries, "PACKAGE", "anyrig_virtual_absent")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "absent-g++")
    assert find_packaged("any", "any") == PackagedLibrary(None)
    monkeypatch.setattr(TorchFiles, "is_published", True)
    with pytest.raises(NoCompilerError, match=r"with: pip install 'anyrig\[virtual\]'$"):
        build.build_extension(sources)
    monkeypatch.setattr(TorchFiles, "is_published", False)
    with pytest.raises(NoCompilerError) as refused:
        build.build_extension(sources)
    assert "pip" not in str(refused.value)


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("2.13.0+cpu", "2.13.0"),
        ("2.15.0+cu132", "2.15.0"),
        ("2.13.0", None),  # conda's, whose headers differ
        ("2.13.0+rocm7.1", None),
        ("2.14.0a0+git1234567", None),
    ],
)
def test_published_builds_of_a_release_share_a_library(version: str, release: str | None) -> None:
    torch = TorchFiles(Path("torch"), version, "cf30153c")
    assert torch.is_published is (release is not None)
    assert torch.release == (release or version)
    shared = build.library_key(TorchFiles(Path("torch"), "2.13.0+cu130", "cf30153c"))
    assert (build.library_key(torch) == shared) is (release == "2.13.0")


def test_an_unpacked_wheel_is_described_as_the_installed_one(tmp_path: Path) -> None:
    installed = TorchFiles.installed()
    if not installed.is_published:
        pytest.skip(f"PyTorch {installed.version} is not a published build")
    shutil.copy(installed.folder / "version.py", tmp_path)
    unpacked = TorchFiles.unpacked(tmp_path)
    assert unpacked.folder == tmp_path
    assert build.library_key(unpacked) == build.library_key(installed)
