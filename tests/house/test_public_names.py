"""The public names, pinned: a change here is a change for users, and belongs in CHANGELOG.md."""

import ast
from pathlib import Path
from types import ModuleType

import pytest

import anyrig

PUBLIC = """
DataParallel Device Exact ParallelLoss Pipeline Replicas Rig Shards __version__
add_device_arguments barrier choose copy_to_host current_device distribute explain
fit_value gather_over_ranks launch load mean_over_ranks move only_first_rank prefetch print_once
resume rig_from_arguments save show_utilization spread use_device
""".split()


ROOMS = [
    *("checkpoint", "devices", "errors", "hazards", "memory", "parallel", "rehearsal"),
    *("transfer", "units", "verification"),
]


def test_names_are_pinned() -> None:
    assert sorted(anyrig.__all__) == sorted(PUBLIC)
    assert len(anyrig.__all__) <= 31
    assert dir(anyrig) == sorted({*PUBLIC, *ROOMS} - {"__version__"})


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_is_there_and_documented(name: str) -> None:
    value = getattr(anyrig, name)
    if callable(value) and not name.endswith("Option"):
        assert value.__doc__


@pytest.mark.parametrize("room", ROOMS)
def test_every_name_of_a_room_is_there(room: str) -> None:
    module = getattr(anyrig, room)
    for name in getattr(module, "__all__", ()):
        assert getattr(module, name) is not None


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'anyrig' has no attribute 'nothing'"):
        anyrig.nothing  # noqa: B018


PACKAGES = [anyrig, *(getattr(anyrig, room) for room in ROOMS)]


@pytest.mark.parametrize("package", [one for one in PACKAGES if hasattr(one, "_MODULE_OF_NAME")])
def test_type_checkers_see_the_same_names(package: ModuleType) -> None:
    tree = ast.parse(Path(str(package.__file__)).read_text())
    imported = {
        alias.asname: f"{'.' * node.level}{node.module or alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname is not None
    }
    rooms = package._ROOMS if package is anyrig else {}
    assert imported == package._MODULE_OF_NAME | rooms
