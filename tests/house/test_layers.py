"""Rooms import downwards only. `CONTRIBUTING.md` has the same table for people."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "anyrig"

# Room -> the rooms it may import. `OPEN_TO_ALL` below are open to all.
MAY_IMPORT = {
    "hardware": set(),
    "devices": {"hardware"},
    "transfer": {"devices"},
    "observe": {"devices"},
    "programs": {"devices", "observe"},
    "memory": {"devices", "observe"},
    "processes": {"devices"},
    "parallel": {"devices", "transfer", "processes"},
    "checkpoint": {"devices", "transfer", "processes", "parallel"},
    "virtual": {"hardware", "devices"},
    "rehearsal": {"hardware", "devices", "observe", "programs", "virtual", "memory"},
    "planning": {"hardware", "memory", "programs", "virtual", "rehearsal"},
    "hazards": {"devices", "observe", "programs", "parallel", "virtual"},
    "verification": {
        *("devices", "observe", "memory", "processes", "parallel", "virtual", "rehearsal"),
    },
    "migration": set(),
}
OPEN_TO_ALL = {
    "errors",
    "late_names",
    "numbered_names",
    "private_names",
    "process_end",
    "regular_file",
    "units",
}
# These stand on top and may import everything.
ON_TOP = {"cli", "testing"}

INSTEAD = {
    "virtual": "a virtual GPU is a CUDA device: use torch.accelerator and "
    "torch.get_device_module(device), and ask nothing else of it",
    "cli": "return the facts and let the command render them",
    "testing": "move what both need into the lower room",
}


def imports_of(path: Path) -> list[tuple[int, str]]:
    """Line and top-level name below `anyrig` of every import in a file."""
    package = ("anyrig", *path.relative_to(PACKAGE).parent.parts)
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join((*base, node.module) if node.module else base)
            # `from .. import devices` names the room behind the import.
            targets = [f"{stem}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [
            (node.lineno, parts[1])
            for parts in (target.split(".") for target in targets)
            if parts[0] == "anyrig" and len(parts) > 1
        ]
    return found


def breaches(root: Path) -> list[str]:
    known = MAY_IMPORT.keys() | ON_TOP | OPEN_TO_ALL
    lines = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        room = parts[0].removesuffix(".py")
        if room in ON_TOP or room in ("__init__", "__main__"):
            continue
        allowed = MAY_IMPORT.get(room, set()) | OPEN_TO_ALL | {room}
        for line, target in imports_of(path):
            if target in known and target not in allowed:
                may = ", ".join(sorted(MAY_IMPORT.get(room, set()))) or "no other room"
                instead = INSTEAD.get(
                    target, "move what both need into a room that both may import"
                )
                lines.append(
                    f"{'/'.join(parts)}:{line}: {room} imports {target}, but may import {may}. "
                    f"Instead: {instead}."
                )
    return lines


def test_rooms_import_downwards_only() -> None:
    assert breaches(PACKAGE) == []


def test_every_room_stands_in_the_table() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms <= MAY_IMPORT.keys() | ON_TOP | OPEN_TO_ALL


@pytest.mark.parametrize(
    "source",
    [
        "from ..cli import app",
        "import anyrig.cli.app",
        "from anyrig import cli",
        "from .. import cli",
    ],
)
def test_a_breach_is_found_and_told_what_to_use(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices" / "device.py").write_text(source)
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    assert breaches(tmp_path) == [
        "devices/device.py:1: devices imports cli, but may import hardware. "
        "Instead: return the facts and let the command render them."
    ]
