"""Copies share links, and collectives take the time of their ring or tree."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import torch
from gpu_rates import (
    COPY_LAUNCH_SECONDS,
    MEMORY_COPY,
    NETWORK,
    NVLINK,
    PCIE,
    T4_PCIE,
    VALUES,
    seconds,
)
from torch import Tensor

from anyrig.virtual import clock

core = sys.modules["anyrig_virtual_extension"]
kinds = core.CollectiveKind

BYTES = 2**32
COPIED_BYTES = 2**27
MOST_LATENCY_SECONDS = 60e-6  # of the longest ring here: 16 ranks on 2 nodes


def close(value: float) -> object:
    return pytest.approx(value, rel=0.01)


def pinned() -> Tensor:
    return torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)


def on_gpu(device: int) -> Tensor:
    return torch.empty(COPIED_BYTES, dtype=torch.uint8, device=device)


@pytest.fixture(scope="module")
def host() -> tuple[Tensor, Tensor]:
    return pinned(), pinned()


def copy_seconds(*copies: tuple[Tensor, Tensor]) -> float:
    """Return the seconds of copies that start at the same time, each on its own streams."""

    def copy_all() -> None:
        for destination, source in copies:
            ends = {t.get_device() for t in (destination, source) if t.is_cuda}
            streams = [torch.cuda.Stream(device) for device in ends]
            with torch.cuda.stream(streams[0]), torch.cuda.stream(streams[-1]):
                destination.copy_(source, non_blocking=True)

    return seconds(copy_all) - len(copies) * COPY_LAUNCH_SECONDS


def test_two_copies_over_one_link_follow_each_other(host: tuple[Tensor, Tensor]) -> None:
    to_gpu = copy_seconds((on_gpu(0), host[0]), (on_gpu(0), host[1]))
    assert to_gpu == close(2 * COPIED_BYTES / PCIE)


def test_the_directions_of_a_link_are_independent(host: tuple[Tensor, Tensor]) -> None:
    assert copy_seconds((on_gpu(0), host[0]), (host[1], on_gpu(0))) == close(COPIED_BYTES / PCIE)
    assert copy_seconds((on_gpu(0), on_gpu(1)), (on_gpu(1), on_gpu(0))) == close(
        COPIED_BYTES / NVLINK
    )


def test_every_gpu_has_its_own_lanes(host: tuple[Tensor, Tensor]) -> None:
    assert copy_seconds((on_gpu(0), host[0]), (on_gpu(1), host[1])) == close(COPIED_BYTES / PCIE)


def test_a_copy_occupies_both_ends() -> None:
    from_one = copy_seconds((on_gpu(1), on_gpu(0)), (on_gpu(2), on_gpu(0)))
    into_one = copy_seconds((on_gpu(0), on_gpu(1)), (on_gpu(0), on_gpu(2)))
    apart = copy_seconds((on_gpu(1), on_gpu(0)), (on_gpu(3), on_gpu(2)))
    assert from_one == into_one == close(2 * COPIED_BYTES / NVLINK)
    assert apart == close(COPIED_BYTES / NVLINK)


def test_gpus_without_nvlink_copy_through_the_host(
    host: tuple[Tensor, Tensor],
) -> None:
    between_t4s = (on_gpu(9), on_gpu(8))
    assert copy_seconds(between_t4s) == close(COPIED_BYTES / T4_PCIE)
    assert copy_seconds((on_gpu(0), on_gpu(8))) == close(COPIED_BYTES / T4_PCIE)
    # The copy takes the lanes of both ends.
    assert copy_seconds(between_t4s, (on_gpu(9), host[0])) == close(2 * COPIED_BYTES / T4_PCIE)
    assert copy_seconds(between_t4s, (on_gpu(8), host[0])) == close(COPIED_BYTES / T4_PCIE)


def test_a_waiting_copy_does_not_delay_a_ready_copy(
    host: tuple[Tensor, Tensor],
) -> None:
    late, ready = torch.cuda.Stream(), torch.cuda.Stream()
    first, second = on_gpu(0), on_gpu(0)

    def copy_both() -> None:
        with torch.cuda.stream(late):
            torch.cuda._sleep(141_000_000)  # 100 ms
            first.copy_(host[0], non_blocking=True)
        with torch.cuda.stream(ready):
            second.copy_(host[1], non_blocking=True)

    torch.cuda.synchronize()
    before = clock().host_seconds
    copy_both()
    ready.synchronize()
    assert clock().host_seconds - before == close(COPIED_BYTES / PCIE)
    late.synchronize()
    assert clock().host_seconds - before == close(0.1 + COPIED_BYTES / PCIE)


@pytest.mark.parametrize("busy", [0, 1])
def test_a_copy_between_gpus_waits_for_the_streams_of_both(busy: int) -> None:
    source, destination = on_gpu(0), on_gpu(1)

    def copy_behind_work() -> None:
        with torch.cuda.device(busy):
            torch.cuda._sleep(1_410_000)  # 1 ms, about two such copies
        destination.copy_(source)

    assert seconds(copy_behind_work) == close(1e-3 + COPIED_BYTES / NVLINK)


BOTH_NODES = [*range(8), *range(10, 18)]

# Large collectives reach a fraction of the rate of copies.
REACHED = VALUES["collective.bandwidth_fraction"]
NVLINK_RING, NETWORK_RING, T4_PCIE_RING, MEMORY_COPY_RING = (
    REACHED * rate for rate in (NVLINK, NETWORK, T4_PCIE, MEMORY_COPY)
)


def latency_seconds(inside: float, between: float) -> float:
    """Return the latency of the better of NCCL's protocols.

    Args:
        inside: the seconds of the steps in a node; the protocol for large sizes has them in its
            base.
        between: the seconds of the steps between nodes.
    """
    low = VALUES["collective.base_seconds"] + inside + between
    return min(low, VALUES["collective.large_base_seconds"] + between)


def collective_seconds(kind: object, ranks: range | list[int]) -> float:
    return float(core.collective_seconds(kind, BYTES, list(ranks)))


def test_a_ring_all_reduce_over_eight_ranks() -> None:
    ring = 2 * 7 / 8 * BYTES / NVLINK_RING
    assert collective_seconds(kinds.ALL_REDUCE, range(8)) == close(ring)


def test_the_ring_of_a_whole_program() -> None:
    tensors = [torch.empty(BYTES, dtype=torch.uint8, device=device) for device in range(8)]
    ring = 8 * COPY_LAUNCH_SECONDS + 2 * 7 / 8 * BYTES / NVLINK_RING
    assert seconds(lambda: torch.cuda.nccl.all_reduce(tensors)) == close(ring)


def test_a_broadcast_to_replicas_is_one_collective() -> None:
    parameters = [torch.empty(BYTES // 4, device="cuda")]
    devices = list(range(8))
    assert seconds(
        lambda: torch.nn.parallel.comm.broadcast_coalesced(parameters, devices, BYTES)
    ) == close(8 * COPY_LAUNCH_SECONDS + BYTES / NVLINK_RING)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("ALL_GATHER", 7 / 8),
        ("REDUCE_SCATTER", 7 / 8),
        ("BROADCAST", 1),
        ("REDUCE", 1),
        ("ALL_TO_ALL", 7 / 8),
        ("GATHER", 7 / 8),
        ("SCATTER", 7 / 8),
    ],
)
def test_the_formula_of_each_collective(name: str, parts: float) -> None:
    assert collective_seconds(getattr(kinds, name), range(8)) == close(parts * BYTES / NVLINK_RING)


def reduce_on(streams: list[torch.cuda.Stream], tensors: list[Tensor]) -> None:
    """Launch an all-reduce of `tensors`, one per GPU, on `streams`."""
    with ExitStack() as stack:
        for stream in streams:
            stack.enter_context(torch.cuda.stream(stream))
        torch.cuda.nccl.all_reduce(tensors)


def test_a_collective_takes_multiprocessors_from_kernels_that_run_with_it() -> None:
    share = VALUES["collective.multiprocessor_share"]
    tensors = [torch.empty(BYTES, dtype=torch.uint8, device=device) for device in range(8)]
    sides = [torch.cuda.Stream(device) for device in range(8)]
    x = torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def computed(first: Callable[[], object], second: Callable[[], object]) -> float:
        seconds(lambda: None)
        before = clock().devices[0].compute_seconds
        first()
        second()
        return clock().devices[0].compute_seconds - before

    alone = computed(lambda: x @ x, lambda: None)
    slower = close(alone / (1 - share))
    assert 0 < share < 0.5
    assert computed(lambda: reduce_on(sides, tensors), lambda: x @ x) == slower
    assert computed(lambda: x @ x, lambda: reduce_on(sides, tensors)) == slower


def test_a_collective_slows_only_the_part_of_a_kernel_that_runs_with_it() -> None:
    share = VALUES["collective.multiprocessor_share"]
    tensors = [torch.empty(BYTES, dtype=torch.uint8, device=device) for device in range(8)]
    sides = [torch.cuda.Stream(device) for device in range(8)]
    x = torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def computed(work: Callable[[], object]) -> float:
        seconds(lambda: None)
        before = clock().devices[0].compute_seconds
        work()
        return clock().devices[0].compute_seconds - before

    alone = computed(lambda: x @ x)

    def reduce_later() -> None:
        for stream in sides:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(int(alone / 2 * 1.41e9))
        reduce_on(sides, tensors)
        x @ x  # its first half is computed before the collective starts

    half_slower = alone / 2 + alone / 2 / (1 - share)
    assert computed(reduce_later) == pytest.approx(half_slower, rel=0.02)


def test_two_collectives_at_once_share_the_links() -> None:
    tensors = [torch.empty(BYTES, dtype=torch.uint8, device=device) for device in range(8)]
    sides = [[torch.cuda.Stream(device) for device in range(8)] for _ in range(2)]
    one = seconds(lambda: reduce_on(sides[0], tensors))
    two = seconds(lambda: [reduce_on(streams, tensors) for streams in sides])
    assert two == close(2 * one)


def test_a_ring_over_two_nodes_uses_the_network_of_all_devices() -> None:
    # The eight GPUs of a node share the traffic: 8 x 45 GB/s is more than NVLink's rate.
    assert collective_seconds(kinds.ALL_REDUCE, BOTH_NODES) == close(
        2 * 15 / 16 * BYTES / min(NVLINK_RING, 8 * NETWORK_RING)
    )
    one_a_node = collective_seconds(kinds.ALL_REDUCE, [0, 10])
    assert one_a_node == close(BYTES / NETWORK_RING)
    assert collective_seconds(kinds.SEND, [3, 14]) == close(BYTES / NETWORK_RING)
    # A gather moves everything to one GPU, over that GPU's share of the network.
    assert collective_seconds(kinds.GATHER, BOTH_NODES) == close(15 / 16 * BYTES / NETWORK_RING)
    assert collective_seconds(kinds.SCATTER, BOTH_NODES) == close(15 / 16 * BYTES / NETWORK_RING)
    to_all = collective_seconds(kinds.ALL_TO_ALL, BOTH_NODES)
    assert to_all == close(8 / 16 * BYTES / NETWORK_RING)


def test_a_ring_with_a_gpu_without_nvlink_goes_through_the_host() -> None:
    assert collective_seconds(kinds.BROADCAST, [0, 1, 8]) == close(BYTES / T4_PCIE_RING)


def test_ranks_on_one_device_are_bound_by_its_memory() -> None:
    assert collective_seconds(kinds.ALL_GATHER, [3, 3]) == close(
        VALUES["collective.large_base_seconds"] + BYTES / 2 / MEMORY_COPY_RING
    )


def test_small_collectives_take_the_latency_of_their_steps() -> None:
    def barrier(*ranks: int) -> float:
        return float(core.collective_seconds(kinds.BARRIER, 4, list(ranks)))

    assert 0 < barrier(0, 1) < barrier(*range(8)) < barrier(*BOTH_NODES) < MOST_LATENCY_SECONDS
    assert barrier(0) == 0


NEIGHBOURS, ACROSS, BY_PCIE = [0, 1], [0, 10], [8, 9]


@pytest.mark.parametrize(
    ("name", "ranks", "steps", "steps_between"),
    [
        ("ALL_REDUCE", range(8), 14, 0),
        ("ALL_GATHER", range(8), 7, 0),
        ("REDUCE_SCATTER", range(8), 7, 0),
        ("BROADCAST", range(8), 7, 0),
        ("REDUCE", range(8), 7, 0),
        ("ALL_TO_ALL", range(8), 1, 0),
        ("GATHER", range(8), 1, 0),
        ("SCATTER", range(8), 1, 0),
        ("SEND", NEIGHBOURS, 1, 0),
        ("RECEIVE", NEIGHBOURS, 1, 0),
        ("ALL_GATHER", BOTH_NODES, 14, 1),
        ("BROADCAST", BOTH_NODES, 14, 1),
        ("ALL_REDUCE", ACROSS, 0, 2),
        ("ALL_TO_ALL", BOTH_NODES, 0, 1),
        ("GATHER", BOTH_NODES, 0, 1),
        ("SEND", ACROSS, 0, 1),
    ],
)
def test_the_steps_of_each_collective(
    name: str, ranks: list[int], steps: int, steps_between: int
) -> None:
    latency = latency_seconds(
        steps * VALUES["collective.link_step_seconds"],
        steps_between * VALUES["collective.ring_network_step_seconds"],
    )
    seconds = core.collective_seconds(getattr(kinds, name), 4, list(ranks))
    assert seconds == pytest.approx(latency, rel=1e-3)


def test_a_step_through_the_host_takes_longer() -> None:
    seconds = core.collective_seconds(kinds.SEND, 4, BY_PCIE)
    latency = latency_seconds(VALUES["collective.pcie_step_seconds"], 0)
    assert seconds == pytest.approx(latency, rel=1e-3)
    assert VALUES["collective.pcie_step_seconds"] > VALUES["collective.link_step_seconds"]


@pytest.mark.parametrize("ranks", [[0, *range(10, 18)], [*range(8), 10]])
def test_the_node_with_the_fewest_ranks_limits_the_network_rate(ranks: list[int]) -> None:
    assert collective_seconds(kinds.ALL_GATHER, ranks) == close(8 / 9 * BYTES / NETWORK_RING)


def test_a_small_all_reduce_between_nodes_uses_the_tree() -> None:
    step, network = (VALUES[f"collective.{kind}_step_seconds"] for kind in ("link", "tree_network"))
    tree = latency_seconds(2 * 7 * step, 2 * network)
    ring = latency_seconds(28 * step, 2 * VALUES["collective.ring_network_step_seconds"])
    assert core.collective_seconds(kinds.ALL_REDUCE, 4, BOTH_NODES) == close(min(tree, ring))
    assert core.collective_seconds(kinds.ALL_GATHER, 4, BOTH_NODES) > 0


def test_a_position_beyond_the_rig_is_refused() -> None:
    with pytest.raises(RuntimeError, match="no device of the virtual rig has position 18"):
        collective_seconds(kinds.ALL_REDUCE, [0, 18])


def test_a_process_sees_the_devices_of_its_node() -> None:
    assert torch.cuda.device_count() == 10
