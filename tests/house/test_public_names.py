"""The public names, pinned: a change here is a change for users, and belongs in CHANGELOG.md."""

import ast
from pathlib import Path

import pytest

import anyrig

PUBLIC = """
AnyrigError Choice DataParallel Device DeviceOption DisableCudaOption HostCopy Layout Lease
Link ParallelLoss Reading Rig Sharding Shares Verdict __version__ acquire_lease add_device_arguments
barrier choose copy_to_host current_device defaults device_capability device_count device_name
device_of distribute explain format_bytes gather gather_over_ranks launch mean_over_ranks move
only_first_rank parallel_apply parse_bytes peak_bytes pin prefetch print_once read read_visibility
replicate rig_from_arguments rig_from_options scatter select_device show_utilization spread survey
use_device watch_cuda_start write_visibility
""".split()


def test_names_are_pinned() -> None:
    assert sorted(anyrig.__all__) == sorted(PUBLIC)
    assert dir(anyrig) == sorted(anyrig.__all__)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_is_there_and_documented(name: str) -> None:
    value = getattr(anyrig, name)
    if callable(value) and not name.endswith("Option"):
        assert value.__doc__


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'anyrig' has no attribute 'nothing'"):
        anyrig.nothing  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(anyrig.__file__).read_text())
    imported = {
        alias.asname: f".{node.module}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names
    }
    assert imported == anyrig._MODULE_OF_NAME
