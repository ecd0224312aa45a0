"""Copies share links, and collectives take the time of their ring or tree."""

from __future__ import annotations

import sys

import pytest
import torch
from card_rates import LAUNCH_SECONDS, MEMORY, NETWORK, NVLINK, PCIE, T4_PCIE, seconds
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

    return seconds(copy_all) - len(copies) * LAUNCH_SECONDS


def test_two_copies_over_one_link_follow_each_other(host: tuple[Tensor, Tensor]) -> None:
    to_card = copy_seconds((on_gpu(0), host[0]), (on_gpu(0), host[1]))
    assert to_card == close(2 * COPIED_BYTES / PCIE)


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


def collective_seconds(kind: object, ranks: range | list[int]) -> float:
    return float(core.collective_seconds(kind, BYTES, list(ranks)))


def test_a_ring_all_reduce_over_eight_ranks() -> None:
    ring = 2 * 7 / 8 * BYTES / NVLINK
    assert collective_seconds(kinds.ALL_REDUCE, range(8)) == close(ring)


def test_the_ring_of_a_whole_program() -> None:
    tensors = [torch.empty(BYTES, dtype=torch.uint8, device=device) for device in range(8)]
    ring = 8 * LAUNCH_SECONDS + 2 * 7 / 8 * BYTES / NVLINK
    assert seconds(lambda: torch.cuda.nccl.all_reduce(tensors)) == close(ring)


def test_a_broadcast_to_replicas_is_one_collective() -> None:
    parameters = [torch.empty(BYTES // 4, device="cuda")]
    devices = list(range(8))
    assert seconds(
        lambda: torch.nn.parallel.comm.broadcast_coalesced(parameters, devices, BYTES)
    ) == close(8 * LAUNCH_SECONDS + BYTES / NVLINK)


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
    assert collective_seconds(getattr(kinds, name), range(8)) == close(parts * BYTES / NVLINK)


def test_a_ring_over_two_nodes_uses_the_network_of_all_devices() -> None:
    # The eight GPUs of a node share the traffic: 8 x 45 GB/s is more than NVLink's rate.
    assert collective_seconds(kinds.ALL_REDUCE, BOTH_NODES) == close(
        2 * 15 / 16 * BYTES / min(NVLINK, 8 * NETWORK)
    )
    one_a_node = collective_seconds(kinds.ALL_REDUCE, [0, 10])
    assert one_a_node == close(BYTES / NETWORK)
    assert collective_seconds(kinds.SEND, [3, 14]) == close(BYTES / NETWORK)
    # A gather moves everything to one GPU, over that GPU's share of the network.
    assert collective_seconds(kinds.GATHER, BOTH_NODES) == close(15 / 16 * BYTES / NETWORK)
    assert collective_seconds(kinds.SCATTER, BOTH_NODES) == close(15 / 16 * BYTES / NETWORK)
    to_all = collective_seconds(kinds.ALL_TO_ALL, BOTH_NODES)
    assert to_all == close(8 / 16 * BYTES / NETWORK)


def test_a_ring_with_a_gpu_without_nvlink_goes_through_the_host() -> None:
    assert collective_seconds(kinds.BROADCAST, [0, 1, 8]) == close(BYTES / T4_PCIE)


def test_ranks_on_one_device_are_bound_by_its_memory() -> None:
    assert collective_seconds(kinds.ALL_GATHER, [3, 3]) == close(BYTES / 2 / (MEMORY / 2))


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
    # NCCL's latencies for protocol LL: 6.6 us, 0.6 us per NVLink step, 2.7 us between nodes.
    latency = 6.6e-6 + steps * 0.6e-6 + steps_between * 2.7e-6
    seconds = core.collective_seconds(getattr(kinds, name), 4, list(ranks))
    assert seconds == pytest.approx(latency, rel=1e-3)


def test_a_step_through_the_host_takes_longer() -> None:
    seconds = core.collective_seconds(kinds.SEND, 4, BY_PCIE)
    assert seconds == pytest.approx(6.6e-6 + 1.0e-6, rel=1e-3)


@pytest.mark.parametrize("ranks", [[0, *range(10, 18)], [*range(8), 10]])
def test_the_node_with_the_fewest_ranks_limits_the_network_rate(ranks: list[int]) -> None:
    assert collective_seconds(kinds.ALL_GATHER, ranks) == close(8 / 9 * BYTES / NETWORK)


def test_a_small_all_reduce_between_nodes_uses_the_tree() -> None:
    # The ring would take 6.6 us + 28 steps inside the nodes + 2 between them = 28.8 us.
    tree = 6.6e-6 + 2 * (7 * 0.6e-6 + 5.0e-6)
    assert core.collective_seconds(kinds.ALL_REDUCE, 4, BOTH_NODES) == close(tree)


def test_a_position_beyond_the_rig_is_refused() -> None:
    with pytest.raises(RuntimeError, match="no device of the virtual rig has position 18"):
        collective_seconds(kinds.ALL_REDUCE, [0, 18])


def test_a_process_sees_the_devices_of_its_node() -> None:
    assert torch.cuda.device_count() == 10
