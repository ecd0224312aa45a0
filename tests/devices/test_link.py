"""Whether two devices reach each other, by what is answered for each direction."""

import pytest

import anyrig
from anyrig.devices.device import Device
from anyrig.devices.link import find_links, reach_each_other


@pytest.mark.parametrize(
    ("open_ways", "expected"),
    [
        ({(2, 5), (5, 2)}, True),
        ({(2, 5)}, False),
        ({(5, 2)}, False),
        ({(2, 2), (5, 5)}, False),
        (set(), False),
    ],
)
def test_peers_must_reach_each_other_in_both_directions(
    open_ways: set[tuple[int, int]], expected: bool
) -> None:
    found = reach_each_other(lambda *pair: pair in open_ways, 2, 5)
    assert found is expected


def test_a_backend_that_cannot_answer_leaves_it_unknown() -> None:
    def fail(first: int, second: int) -> bool:
        raise RuntimeError(f"no such devices: {first}, {second}")

    assert reach_each_other(fail, 0, 1) is None


def test_every_pair_has_one_link_and_the_cpu_knows_none_of_it() -> None:
    cpus = [Device("cpu", None, name) for name in "abc"]
    links = find_links(tuple(cpus))
    assert [(link.first.name, link.second.name) for link in links] == [
        ("a", "b"),
        ("a", "c"),
        ("b", "c"),
    ]
    unknown = {(link.peer_access, link.kind, link.bytes_per_second) for link in links}
    assert unknown == {(None, None, None)}
    assert anyrig.Rig.parse("cpu").links == ()
