"""Which device a local rank has."""

import pytest

from anyrig.devices.rank import LocalRank
from anyrig.errors import LaunchError


@pytest.mark.parametrize(
    ("world_size", "device_count", "devices"),
    [
        (1, 1, [0]),
        (2, 4, [0, 1]),
        (4, 4, [0, 1, 2, 3]),
        (4, 2, [0, 0, 1, 1]),
        (5, 2, [0, 0, 0, 1, 1]),
        (4, 3, [0, 0, 1, 2]),
        (3, 1, [0, 0, 0]),
    ],
)
def test_neighbours_share_a_device(world_size: int, device_count: int, devices: list[int]) -> None:
    found = [LocalRank(rank, world_size).device_index(device_count) for rank in range(world_size)]
    assert found == devices


def test_the_variables_are_read_where_both_are_set() -> None:
    both = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert LocalRank.read(both) == LocalRank(1, 2)
    for name in both:
        assert LocalRank.read({name: both[name]}) is None
    assert LocalRank.read({}) is None


@pytest.mark.parametrize(
    ("rank", "world_size"),
    [("2", "2"), ("-1", "2"), ("0", "0"), ("one", "2"), ("0", " ")],
)
def test_variables_that_name_no_process(rank: str, world_size: str) -> None:
    with pytest.raises(LaunchError) as refusal:
        LocalRank.read({"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world_size})
    assert str(refusal.value) == (
        f"LOCAL_RANK={rank} and LOCAL_WORLD_SIZE={world_size} are not a valid local rank; "
        "unset both, or start the program with anyrig run or torchrun"
    )
