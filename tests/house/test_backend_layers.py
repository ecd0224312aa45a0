"""The C++ files of the virtual backend include downwards; `csrc/README.md` draws the layers."""

import re
from pathlib import Path

import anyrig.virtual
from anyrig.virtual import compiler

ROOM = Path(anyrig.virtual.__file__).parent
SOURCES = ROOM / "csrc"
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)

# Folder -> folders that its files must not include, and what to use instead.
NEVER = {
    "memory": {"graphs": "time/capture.h says which streams are captured"},
    "time": {"graphs": "time/capture.h says which streams are captured"},
}
INSTEAD_OF_EXTRAS = "declare what the extra must provide in extra.h, or in a header of the core"


def includes_of(file: Path) -> list[str]:
    return INCLUDE.findall(file.read_text())


def breaches(sources: Path) -> list[str]:
    lines = []
    for file in sorted([*sources.rglob("*.h"), *sources.rglob("*.cpp")]):
        name = file.relative_to(sources).as_posix()
        folder = name.split("/")[0]
        for include in includes_of(file):
            other = include.split("/")[0]
            if other == "extras" and folder != "extras":
                lines.append(f"{name} includes {include}; {INSTEAD_OF_EXTRAS}")
            elif other in NEVER.get(folder, {}):
                lines.append(f"{name} includes {include}; {NEVER[folder][other]}")
    return lines


def test_files_include_downwards() -> None:
    assert breaches(SOURCES) == []


def test_a_breach_is_found(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.cpp").write_text('#include "graphs/x.h"\n#include "extras/y.h"\n')
    assert breaches(tmp_path) == [
        "memory/memory.cpp includes graphs/x.h; time/capture.h says which streams are captured",
        f"memory/memory.cpp includes extras/y.h; {INSTEAD_OF_EXTRAS}",
    ]


def headers_of(file: Path) -> set[Path]:
    headers: set[Path] = set()
    waiting = [file]
    while waiting:
        found = {SOURCES / include for include in includes_of(waiting.pop())} - headers
        headers |= found
        waiting += found
    return headers


def test_files_that_run_in_every_call_include_no_header_with_pybind11() -> None:
    files = [f for f in SOURCES.rglob("*.cpp") if compiler._runs_in_every_call(f, SOURCES)]
    headers = set.union(*map(headers_of, files))
    assert len(files) > 50
    assert [header.name for header in headers if "pybind" in header.read_text()] == []


def test_every_extra_is_listed() -> None:
    folder = SOURCES / "extras"
    found = {file.stem for file in folder.iterdir() if file.is_dir() or file.suffix == ".cpp"}
    listed = re.findall(r'\.name = "(\w+)"', (folder / "list.cpp").read_text())
    assert sorted(listed) == sorted(found - {"list"})


def test_python_files_import_the_list_of_extras_only() -> None:
    others = [file for file in ROOM.rglob("*.py") if "extras" not in file.relative_to(ROOM).parts]
    importing = [
        file.relative_to(ROOM).as_posix()
        for file in others
        if re.search(r"^\s*from \.+extras|^\s*import .*\.extras\.", file.read_text(), re.MULTILINE)
    ]
    assert len(others) > 40
    assert importing == []
