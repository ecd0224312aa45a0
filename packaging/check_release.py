"""Check what `make release` has built, as a user gets it; nothing is published.

    python packaging/check_release.py dist

A source distribution that has the sources; wheels of a bearable size with the licences of what is
in them; in a new virtual environment without a compiler, the README's Python and the first
rehearsal; and last the version in the list of changes.
"""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LARGEST_WHEEL_BYTES = 40 * 10**6
LONGEST_START_SECONDS = 15.0


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    version = _version()
    source, pure, *compiled = (
        *folder.glob(f"anyrig-{version}.tar.gz"),
        *folder.glob(f"anyrig-{version}-py3-none-any.whl"),
        *folder.glob(f"anyrig_virtual-{version}-*.whl"),
    )
    check_source(source)
    check_pure(pure, version)
    for wheel in compiled:
        check_compiled(wheel)
    with tempfile.TemporaryDirectory() as place:
        python = install([pure, *compiled], Path(place))
        check_commands(python, Path(place), needs_compiler=not compiled)
    check_changelog(version)
    files = ", ".join(file.name for file in (source, pure, *compiled))
    print(f"anyrig {version} is ready: {files}")


def _version() -> str:
    text = (REPOSITORY / "src/anyrig/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    _require(found, "src/anyrig/__init__.py has no __version__")
    assert found is not None
    return found[1]


def check_changelog(version: str) -> None:
    """The changes of this version have a heading of their own, and none are left unreleased."""
    text = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    _require(
        re.search(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", text, re.MULTILINE),
        f"CHANGELOG.md has no heading '## {version} - YYYY-MM-DD'",
    )


def check_source(archive: Path) -> None:
    """The source distribution has what the wheel is built from."""
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    listed = subprocess.run(
        ["git", "ls-files", "src", "LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    _require_all(listed, names, archive)


def check_pure(wheel: Path, version: str) -> None:
    """The wheel has the C++ sources, its licence, and metadata of this version."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = f"anyrig-{version}.dist-info"
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
    sources = (REPOSITORY / "src").rglob("*.cpp")
    wanted = [file.relative_to(REPOSITORY / "src").as_posix() for file in sources]
    _require_all([*wanted, f"{info}/licenses/LICENSE", "anyrig/py.typed"], names, wheel)
    _require(metadata["Version"] == version, f"{wheel} has the version {metadata['Version']}")
    virtual = f"anyrig-virtual=={version}"
    _require(
        any(one.partition(";")[0].strip() == virtual for one in metadata.get_all("Requires-Dist")),
        f"{wheel} does not require {virtual} for its extra virtual",
    )


def check_compiled(wheel: Path) -> None:
    """The wheel is small, and has the licences of the code that is compiled into it."""
    size = wheel.stat().st_size
    _require(size <= LARGEST_WHEEL_BYTES, f"{wheel} has {size:,} bytes")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    releases = {name.split("/")[1].split("-")[0] for name in names if name.endswith("extension.so")}
    wanted = [f"anyrig_virtual/licenses/torch-{release}/LICENSE" for release in releases]
    _require_all([*wanted, "anyrig_virtual/licenses/anyrig/LICENSE"], names, wheel)
    print(f"{wheel.name}: {size / 1e6:.1f} MB, for PyTorch {', '.join(sorted(releases))}")


def install(wheels: list[Path], place: Path) -> Path:
    """Install the wheels in a new virtual environment; return its Python."""
    venv.create(place / "venv", with_pip=True)
    python = place / "venv/bin/python"
    pinned = ["--constraint", REPOSITORY / "constraints.txt"]
    install = [python, "-m", "pip", "install", "--quiet", *pinned, *wheels, "numpy"]
    subprocess.run(install, check=True)
    return python


def check_commands(python: Path, place: Path, *, needs_compiler: bool) -> None:
    """The README's Python blocks run, and the first rehearsal begins to print soon."""
    path = os.environ["PATH"] if needs_compiler else str(python.parent)
    environment = {"PATH": path, "HOME": str(place), "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
    environment["PYTHONUNBUFFERED"] = "1"  # a pipe gets the first line when a terminal would
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    script = place / "readme.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    subprocess.run([python, script], cwd=place, env=environment, check=True)
    anyrig = python.with_name("anyrig")
    example = str(REPOSITORY / "examples/digits.py")
    for words in ([example], ["--rig", "2xT4", example, "--epochs", "1"]):
        command = "rehearse" if "--rig" in words else "run"
        started = time.monotonic()
        with subprocess.Popen(
            [anyrig, command, *words], cwd=place, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            seconds = time.monotonic() - started
            print(first + process.stdout.read(), end="")
        _require(process.returncode == 0, f"anyrig {command} ended with {process.returncode}")
        print(f"anyrig {command} began to print after {seconds:.1f} s")
        if command == "rehearse" and not needs_compiler and seconds > LONGEST_START_SECONDS:
            print(f"slow: more than {LONGEST_START_SECONDS:.0f} s; is this machine busy?")


def _require_all(wanted: Iterable[str], names: Iterable[str], where: Path) -> None:
    missing = sorted(set(wanted) - set(names))
    _require(not missing, f"{where} has no {', '.join(missing[:5])}")


def _require(true: object, otherwise: str) -> None:
    if not true:
        sys.exit(f"not ready for a release: {otherwise}")


if __name__ == "__main__":
    main()
