"""The text of a virtual rig: what it names, and what it is refused for."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyrig.errors import DeviceTextError, UnknownHardwareError
from anyrig.hardware import spec_of_key, specs
from anyrig.virtual.installed import Installation
from anyrig.virtual.rig import MOST_DEVICES, MOST_NODES, NETWORK_BYTES_PER_SECOND, VirtualRig

CUDA_KEYS = [key for key, spec in specs().items() if spec.capability is not None]


def test_a_count_and_a_gpu() -> None:
    rig = VirtualRig.parse("4xA100-80GB")
    assert len(rig.devices) == 4
    first = rig.devices[0]
    assert first.name == "NVIDIA A100-SXM4-80GB"
    assert first.capability == (8, 0)
    assert first.multiprocessors == 108
    assert first.memory_bytes == spec_of_key("A100-80GB").memory_bytes
    assert first.spec is first.rates is spec_of_key("A100-80GB")


def test_unequal_gpus_are_numbered_from_left_to_right() -> None:
    rig = VirtualRig.parse("A100-40GB + 2xT4")
    assert [device.key for device in rig.devices] == ["A100-40GB", "T4", "T4"]


def test_a_plain_gpu_has_its_size_and_is_otherwise_like_an_a100() -> None:
    first, second = VirtualRig.parse("2x16GiB").devices
    assert first.memory_bytes == 16 * 2**30
    assert first.name == "Virtual GPU 16GiB"
    assert first.capability == (8, 0)
    assert first.spec is None
    assert first.rates.key == "A100-80GB"
    assert first.uuid != second.uuid


def test_a_uuid_looks_like_a_drivers_and_is_the_same_every_time() -> None:
    uuids = [device.uuid for device in VirtualRig.parse("64xT4").devices]
    assert len(set(uuids)) == 64
    assert all(re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", u) for u in uuids)
    assert uuids == [device.uuid for device in VirtualRig.parse("64xT4").devices]


sizes = st.integers(2 * 2**20, 2**42).map(lambda count: f"{count}B") | st.sampled_from(
    ["16GiB", "24GB", "1TiB", "2.5GiB", "1TB", "700GiB", "1024GiB"]
)
groups = st.tuples(st.integers(1, 8), st.sampled_from(CUDA_KEYS) | sizes)


@given(st.lists(groups, min_size=1, max_size=8))
def test_the_text_of_a_rig_names_the_same_rig(parts: list[tuple[int, str]]) -> None:
    rig = VirtualRig.parse("+".join(f"{count}x{gpu}" for count, gpu in parts))
    assert len(rig.devices) == sum(count for count, _ in parts)
    assert VirtualRig.parse(str(rig)) == rig


nodes = st.tuples(st.integers(1, 3), st.lists(groups, min_size=1, max_size=3))
rates = st.none() | st.integers(1, 10**13).map(lambda count: f"{count / 1000}kB/s")


@given(st.lists(nodes, min_size=1, max_size=4), rates)
def test_the_text_of_a_rig_of_several_nodes_names_the_same_rig(
    parts: list[tuple[int, list[tuple[int, str]]]], rate: str | None
) -> None:
    layout = "+".join(
        f"{count}x({'+'.join(f'{c}x{gpu}' for c, gpu in node)})" for count, node in parts
    )
    rig = VirtualRig.parse(layout if rate is None else f"{layout}@{rate}")
    assert rig.node_count == sum(count for count, _ in parts)
    assert VirtualRig.parse(str(rig)) == rig


def test_nodes_hold_their_devices() -> None:
    rig = VirtualRig.parse("2x(A100-40GB + 2xT4) + (L4)")
    assert [(d.node, d.key) for d in rig.devices] == [
        (0, "A100-40GB"), (0, "T4"), (0, "T4"),
        (1, "A100-40GB"), (1, "T4"), (1, "T4"),
        (2, "L4"),
    ]  # fmt: skip
    assert rig.devices_of_node(1) == rig.devices[3:6]
    assert len({device.uuid for device in rig.devices}) == 7
    assert VirtualRig.parse("4xT4").node_count == 1


@pytest.mark.parametrize(
    ("rate", "bytes_per_second"),
    [("", NETWORK_BYTES_PER_SECOND), ("@200Gbit/s", 25 * 10**9), ("@ 12.5 GB/s", 125 * 10**8)],
)
def test_the_network_has_a_rate(rate: str, bytes_per_second: int) -> None:
    assert VirtualRig.parse(f"2x(8xH100-SXM){rate}").network_bytes_per_second == bytes_per_second


@pytest.mark.parametrize("text", ["2x(T4)@", "2x(T4)@25", "2x(T4)@25GB", "2x(T4)@0GB/s", "T4@fast"])
def test_a_rate_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(DeviceTextError, match="@50GB/s"):
        VirtualRig.parse(text)


@pytest.mark.parametrize(
    "text", ["2x(T4", "2xT4)", "(T4)+T4", "T4+(T4)", "2x()", "(T4)(T4)", "2x(2x(T4))", "0x(T4)"]
)
def test_parentheses_that_make_no_nodes_are_refused(text: str) -> None:
    with pytest.raises(DeviceTextError):
        VirtualRig.parse(text)


@pytest.mark.parametrize(
    ("text", "shortest"),
    [
        ("(4xT4)", "4xT4"),
        ("(T4+T4)+(2xT4)+(L4)", "2x(2xT4)+(L4)"),
        ("2x(T4)@400Gbit/s", "2x(T4)"),
        ("2x(T4)@200Gbit/s", "2x(T4)@25GB/s"),
        ("T4+T4", "2xT4"),
        ("1x1024MiB", "1GiB"),
        ("3x16000MB", "3x16GB"),
        ("T4+2xL4+T4", "T4+2xL4+T4"),
        ("a100-80gb", "A100-80GB"),
        ("2*t4", "2xT4"),
        ("T4x2 + 3Xl4", "2xT4+3xL4"),
        ("rtx4090x2", "2xRTX-4090"),
        ("RTX4090", "RTX-4090"),
        ("2x3090", "2xRTX-3090"),
        ("3090", "RTX-3090"),
        ("a6000x2", "2xRTX-A6000"),
        ("16GiBx2", "2x16GiB"),
        ("2x24gb", "2x24GB"),
        ("2*(8*h100sxm)", "2x(8xH100-SXM)"),
    ],
)
def test_the_text_of_a_rig_is_short(text: str, shortest: str) -> None:
    assert str(VirtualRig.parse(text)) == shortest


@pytest.mark.parametrize(
    "text", ["", "+", "T4+", "2x", "+T4", "2x16", "16", "0xT4", "65xT4", "T4x0", "x2"]
)
def test_what_follows_no_grammar_is_refused(text: str) -> None:
    with pytest.raises(DeviceTextError):
        VirtualRig.parse(text)


def test_too_many_devices_in_all_are_refused() -> None:
    with pytest.raises(DeviceTextError, match=f"1 to {MOST_DEVICES} devices.* have 80"):
        VirtualRig.parse("40xT4+40xL4")
    with pytest.raises(DeviceTextError, match=f"1 to {MOST_DEVICES} devices.* have 65"):
        VirtualRig.parse("(T4)+(64xT4+L4)")
    with pytest.raises(DeviceTextError, match=f"a node 2000 times.* 1 to {MOST_NODES} nodes"):
        VirtualRig.parse("2000x(T4)")


def test_a_number_without_a_unit_is_told_its_unit() -> None:
    with pytest.raises(DeviceTextError, match="for a plain GPU of that size, write 16GiB"):
        VirtualRig.parse("2x16")


def test_a_gpu_too_small_for_the_allocator_is_refused() -> None:
    with pytest.raises(DeviceTextError, match=r"is too small: .* at least 2\.00 MiB"):
        VirtualRig.parse("1MiB")


def test_an_unknown_gpu_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(UnknownHardwareError, match=r"'A1000'; the nearest are .*A100-80GB"):
        VirtualRig.parse("8xA1000")
    with pytest.raises(UnknownHardwareError, match="'A100' names 4 GPUs; write A100-40GB or A100"):
        VirtualRig.parse("8xA100")


def test_a_gpu_that_cuda_does_not_drive_is_refused() -> None:
    with pytest.raises(UnknownHardwareError, match="MI300X is not a CUDA GPU"):
        VirtualRig.parse("8xMI300X")


@pytest.mark.parametrize("text", ["1x20000000000GiB", "2x1025TiB", f"{'9' * 400}B"])
def test_a_gpu_too_large_to_count_is_refused(text: str) -> None:
    with pytest.raises(DeviceTextError, match=r"at most 1024\.00 TiB|more than 300 digits"):
        VirtualRig.parse(text)


def test_only_gpus_that_a_rig_can_have_are_offered() -> None:
    with pytest.raises(UnknownHardwareError) as refused:
        VirtualRig.parse("MI300")
    offered = str(refused.value).rpartition("All of them: ")[2].split(", ")
    assert offered == CUDA_KEYS
    assert "MI300X" not in str(refused.value)


def test_what_a_notebook_shows_of_a_rig_is_a_line() -> None:
    rig = VirtualRig.parse("2x(8xH100-SXM)")
    assert repr(rig) == "VirtualRig.parse('2x(8xH100-SXM)')"
    assert eval(repr(rig)) == rig
    installed = Installation(rig, shape_only=True, assume_values=False, clock=True)
    assert repr(rig) in repr(installed)
    assert len(repr(installed)) < 150
    assert len(repr(rig.devices[0])) < 250
