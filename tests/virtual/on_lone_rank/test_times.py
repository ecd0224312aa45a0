"""The clock charges a collective for all ranks, by the formula of the cost model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from anyrig.hardware import coefficients_of, spec_of_key, values_of
from anyrig.virtual import clock

pytestmark = pytest.mark.usefixtures("group")

GPU = spec_of_key("H100-SXM")
VALUES = {name: values[0] for name, values in values_of(coefficients_of(GPU)).items()}
BYTES = 2**30
# Each of a node's eight GPUs carries an eighth of the data over its share of the network.
NETWORK = 8 * 25e9 * VALUES["copy.network_fraction"] * VALUES["collective.bandwidth_fraction"]
assert GPU.link_bytes_per_second is not None
NVLINK = (
    GPU.link_bytes_per_second
    * VALUES["copy.link_fraction"]
    * VALUES["collective.bandwidth_fraction"]
)
BASE, STEP = VALUES["collective.large_base_seconds"], VALUES["collective.ring_network_step_seconds"]


def seconds_of(call: Callable[[], object]) -> float:
    """Return for how long GPU 0 takes part in collectives during a call."""
    torch.cuda.synchronize()
    before = clock().devices[0].collective_seconds
    call()
    torch.cuda.synchronize()
    return clock().devices[0].collective_seconds - before


def all_reduce(group: dist.ProcessGroup | None = None) -> float:
    data = torch.empty(BYTES, dtype=torch.uint8, device="cuda")
    return seconds_of(lambda: dist.all_reduce(data, group=group))


def test_an_all_reduce_over_two_nodes_of_eight() -> None:
    # A ring of 16 ranks sends 2 * 15 / 16 of the data, and crosses the network in 2 of its steps.
    expected = BASE + 2 * STEP + 2 * 15 / 16 * BYTES / NETWORK
    assert all_reduce() == pytest.approx(expected, rel=1e-6)


def test_an_all_reduce_in_a_node() -> None:
    expected = BASE + 2 * 7 / 8 * BYTES / NVLINK
    assert all_reduce(dist.new_group(list(range(8)))) == pytest.approx(expected, rel=1e-6)


def test_an_all_reduce_of_one_gpu_in_each_node() -> None:
    expected = BASE + 2 * STEP + BYTES / (NETWORK / 8)
    assert all_reduce(dist.new_group([0, 8])) == pytest.approx(expected, rel=1e-6)


def test_an_all_gather_over_two_nodes() -> None:
    gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    part = torch.empty(BYTES // 16, dtype=torch.uint8, device="cuda")
    whole = torch.empty(BYTES, dtype=torch.uint8, device="cuda")
    expected = BASE + STEP + 15 / 16 * BYTES / NETWORK
    assert seconds_of(lambda: gather_single(whole, part)) == pytest.approx(expected, rel=1e-6)
