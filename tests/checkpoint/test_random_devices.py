"""The random numbers of devices that a process has, or has not, when they are loaded."""

from __future__ import annotations

import random

import pytest
import torch

from anyrig.checkpoint.random_state import (
    check_random_state,
    read_random_state,
    write_random_state,
)
from anyrig.errors import CheckpointDamagedError


@pytest.mark.gpus(2)
def test_devices_that_the_saving_process_did_not_have_are_named() -> None:
    state = read_random_state()
    names = [f"cuda:{index}" for index in range(torch.cuda.device_count())]

    def draw() -> list[float]:
        return [torch.rand(1, device=name).item() for name in names]

    def text(*names: str) -> str:
        devices = ", ".join(names)
        return f"random numbers of {devices}: the saving process did not have this device"

    drawn = draw()
    assert write_random_state(state) == ""
    assert draw() == drawn
    devices = state["devices"]
    assert write_random_state({**state, "devices": devices[:1]}) == text(*names[1:])
    assert draw()[0] == drawn[0]
    odd = [torch.ones(3, dtype=torch.uint8), *devices[1:]]
    assert write_random_state({**state, "devices": odd}) == text(names[0])
    assert draw()[1:] == drawn[1:]
    assert write_random_state({**state, "devices": []}) == text(*names)
    more = write_random_state({**state, "devices": [*devices, devices[0]]})
    assert more.startswith("random numbers of 1 device that this process does not have; dropout")
    both = write_random_state({**state, "devices": [odd[0], *devices[1:], *devices[:2]]})
    assert both.startswith(f"{text(names[0])}; random numbers of 2 devices that")


@pytest.mark.parametrize("bits", [torch.ones(3), torch.ones(3, 3, dtype=torch.uint8)])
def test_bits_that_no_generator_of_a_device_takes_are_found(bits: torch.Tensor) -> None:
    state = {**read_random_state(), "devices": [bits]}
    with pytest.raises(CheckpointDamagedError, match="random numbers were altered: the state of a"):
        check_random_state(state)


def test_a_state_is_checked_without_a_change_of_the_generators() -> None:
    state = read_random_state()
    random.random(), torch.rand(1)
    before = random.getstate(), torch.get_rng_state()
    check_random_state(state)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
