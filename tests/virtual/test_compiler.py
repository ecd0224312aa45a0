"""Which compiler is taken, how the sources are shared out, and what an error shows of its words."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from torch.utils.cpp_extension import include_paths

from anyrig.errors import BuildError, NoCompilerError
from anyrig.virtual import compiler
from anyrig.virtual.build import SOURCES
from anyrig.virtual.compiler import Compiler, compile_flags, count_units
from anyrig.virtual.compiler_processes import CompilerProcesses, _first_errors
from anyrig.virtual.torch_files import TorchFiles

GIB = 2**30


def put(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path


def test_the_first_compiler_that_answers_is_taken(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(path, "c++", "echo c++ 3; echo more")
    assert Compiler.find() == Compiler(("c++",), "c++ 3")
    put(path, "clang++", "echo clang 2")
    assert Compiler.find() == Compiler(("clang++",), "clang 2")
    put(path, "g++", "echo broken; exit 1")
    assert Compiler.find().command == ("clang++",)
    put(path, "g++", "exit 0")  # says nothing
    assert Compiler.find().command == ("clang++",)
    put(path, "g++", 'test "$1" = --version && echo g++ 1')
    assert Compiler.find() == Compiler(("g++",), "g++ 1")
    put(path, "ccache", 'test "$2" = --version && echo "$1 by ccache"')
    monkeypatch.setenv("CXX", "ccache 'my g++'")
    assert Compiler.find() == Compiler(("ccache", "my g++"), "my g++ by ccache")
    monkeypatch.setenv("CXX", "icpx")
    with pytest.raises(NoCompilerError) as refused:
        Compiler.find()
    assert str(refused.value).startswith(
        "virtual GPUs must be built once, and the compiler 'icpx', which CXX names, was not found "
        "on this machine; install one with: "
    )


@pytest.mark.skipif(sys.platform != "linux", reason="another system has one command")
@pytest.mark.parametrize(
    ("release", "compiler_command", "headers_command"),
    [
        ({"ID": "debian"}, "sudo apt-get install g++", "sudo apt-get install python{}-dev"),
        (
            {"ID": "ubuntu", "ID_LIKE": "debian"},
            "sudo apt-get install g++",
            "sudo apt-get install python{}-dev",
        ),
        (
            {"ID": "rocky", "ID_LIKE": "rhel centos fedora"},
            "sudo dnf install gcc-c++",
            "sudo dnf install python{}-devel",
        ),
        (
            {"ID": "opensuse-leap", "ID_LIKE": "suse opensuse"},
            "sudo zypper install gcc-c++",
            "sudo zypper install python{digits}-devel",
        ),
        ({"ID": "arch"}, "sudo pacman -S gcc", "sudo pacman -S python"),
        ({"ID": "nixos"}, "conda install cxx-compiler", "conda install python={}"),
        ({}, "conda install cxx-compiler", "conda install python={}"),
        (OSError(), "conda install cxx-compiler", "conda install python={}"),
    ],
    ids=str,
)
def test_the_command_that_installs_is_the_systems(
    release: dict[str, str] | OSError,
    compiler_command: str,
    headers_command: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read() -> dict[str, str]:
        if isinstance(release, OSError):
            raise release
        return release

    monkeypatch.setattr(compiler.platform, "freedesktop_os_release", read)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert compiler._install_commands.__wrapped__() == (
        compiler_command,
        headers_command.format(version, digits=version.replace(".", "")),
    )


@pytest.mark.skipif(sys.platform != "linux", reason="cores are counted so on Linux only")
@pytest.mark.parametrize(
    ("cores", "free_bytes", "units", "jobs"),
    [
        (1, 64 * GIB, 2, 1),
        (2, 64 * GIB, 2, 2),
        (5, 64 * GIB, 5, 5),
        (8, 64 * GIB, 8, 8),
        (64, 640 * GIB, 8, 64),
        (64, 12 * GIB, 4, 4),
        (64, int(11.9 * GIB), 3, 3),
        (64, GIB, 2, 1),
    ],
)
def test_there_is_a_unit_a_core_as_far_as_memory_goes(
    cores: int, free_bytes: int, units: int, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler.os, "sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free_bytes))
    assert count_units() == units
    assert compiler._possible_jobs() == jobs


def test_the_sources_are_shared_out_evenly_and_once_each(tmp_path: Path) -> None:
    sources = tmp_path / "csrc"
    sizes = {"time/a": 900, "time/b": 300, "dispatch/c": 290, "dispatch/d": 310, "module": 7}
    for name, size in sizes.items():
        file = sources / f"{name}.cpp"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x" * size)
    (sources / "time/e.cpp").write_text("#include <pybind11/stl.h>\n")
    units = compiler._write_units(sources, 4, tmp_path)
    contents = {
        path.name: [line.split(f"{sources}/")[1] for line in path.read_text().splitlines()]
        for path in units
    }
    assert contents == {
        "unit-O2-0.cpp": ['time/a.cpp"'],
        "unit-O2-1.cpp": ['dispatch/c.cpp"', 'dispatch/d.cpp"', 'time/b.cpp"'],
        "unit-Og-0.cpp": ['time/e.cpp"'],
        "unit-Og-1.cpp": ['module.cpp"'],
    }
    assert list(units.values()) == ["-O2", "-O2", "-Og", "-Og"]


def test_every_folder_that_is_optimised_exists() -> None:
    folders = {file.name for file in SOURCES.iterdir() if file.is_dir()}
    assert compiler._IN_EVERY_CALL.issubset(folders)


def test_each_narrow_header_stands_for_one_of_pytorch() -> None:
    narrow = SOURCES / compiler._NARROW_HEADERS
    names = [file.relative_to(narrow) for file in narrow.rglob("*.h")]
    assert names
    assert [
        name for name in names if not (TorchFiles.installed().folder / "include" / name).exists()
    ] == []


def test_the_narrow_header_has_what_headers_of_distributed_call() -> None:
    # Whether another source of a unit includes it first depends on the number of units.
    narrow = SOURCES / compiler._NARROW_HEADERS / "ATen/Functions.h"
    headers = [Path(folder) for folder in include_paths()]
    called = {
        name
        for folder in headers
        for file in (folder / "torch/csrc/distributed/c10d").glob("*.hpp")
        for name in re.findall(r"\bat::(\w+)\(", file.read_text(encoding="utf-8"))
        if any((other / f"ATen/ops/{name}.h").is_file() for other in headers)
    }
    included = set(re.findall(r"<ATen/ops/(\w+)\.h>", narrow.read_text(encoding="utf-8")))
    assert {"cat", "empty_strided"} <= called <= included


@pytest.mark.sweep
@pytest.mark.parametrize("units", range(compiler._LEAST_UNITS, compiler._MOST_UNITS + 1))
def test_the_sources_compile_in_any_number_of_units(units: int, tmp_path: Path) -> None:
    # A source without an include that it needs compiles if an earlier one of its unit has it.
    folders = ["-iquote", str(SOURCES), "-isystem", str(SOURCES / compiler._NARROW_HEADERS)]
    torch = TorchFiles.installed()
    flags = [*compile_flags(torch), *folders, *compiler.header_flags(torch), "-fsyntax-only"]
    for file in compiler._write_units(SOURCES, units, tmp_path):
        checked = subprocess.run(
            ["g++", *flags, str(file)], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stderr[-4000:]


def test_windows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.sys, "platform", "win32")
    with pytest.raises(BuildError, match="need Linux or macOS; on Windows, use them in WSL"):
        compile_flags(TorchFiles.installed())


def test_errors_come_before_what_follows_from_them() -> None:
    lines = [f"a.cpp:{n}: error: no {n}" for n in range(20)]
    mixed = [line for error in lines for line in ("In file included from", error, "note: here")]
    assert _first_errors("\n".join(mixed)) == "\n".join(lines[:12])
    assert _first_errors("\n".join(f"line {n}" for n in range(20))) == "\n".join(
        f"line {n}" for n in range(8, 20)
    )
    assert _first_errors("") == ""


def test_a_command_that_fails_is_an_error_with_its_status_and_words(tmp_path: Path) -> None:
    with CompilerProcesses(1, tmp_path) as processes:
        done = processes.start(["sh", "-c", 'test "$TMPDIR" = "$1"', "sh", str(tmp_path)], "first")
        assert done.result() == ""
        failed = processes.start(["sh", "-c", "echo words >&2; exit 3"], "it did not work")
        with pytest.raises(BuildError) as refused:
            failed.result()
    assert str(refused.value) == (
        "it did not work (exit status 3) by: sh -c 'echo words >&2; exit 3'\nwords"
    )
