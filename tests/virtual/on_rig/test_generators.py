"""The state of a generator is a seed and an offset, as on CUDA."""

from __future__ import annotations

import pytest
import torch

DEVICE, OTHER = "cuda:1", "cuda:2"


def test_the_state_is_a_seed_and_an_offset() -> None:
    generator = torch.Generator(device=DEVICE)
    generator.manual_seed(3)
    state = generator.get_state()
    assert state.dtype == torch.uint8
    assert state.device.type == "cpu"
    assert state.tolist() == [3] + [0] * 15
    generator.set_offset(4)
    assert generator.get_offset() == 4
    assert generator.get_state().tolist() == [3] + [0] * 7 + [4] + [0] * 7
    with pytest.raises(RuntimeError, match="offset must be a multiple of 4"):
        generator.set_offset(3)
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        generator.set_state(torch.zeros(5, dtype=torch.uint8))


def test_a_state_without_an_offset_starts_at_0() -> None:
    # The format of PyTorch before 1.5.
    generator = torch.Generator(device=DEVICE)
    generator.set_offset(8)
    generator.set_state(torch.tensor([5] + [0] * 7, dtype=torch.uint8))
    assert (generator.initial_seed(), generator.get_offset()) == (5, 0)


def test_the_same_seed_gives_the_same_numbers() -> None:
    torch.manual_seed(1)
    first = torch.randn(5, device="cuda")
    second = torch.randn(5, device="cuda")
    assert not torch.equal(first, second)
    torch.cuda.manual_seed_all(1)
    assert torch.equal(first, torch.randn(5, device="cuda"))
    state = torch.cuda.get_rng_state()
    drawn = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(drawn, torch.rand(3, device="cuda"))
    assert torch.cuda.initial_seed() == 1


def test_cpu_tensors_cannot_draw_from_a_gpu_generator() -> None:
    generator = torch.Generator(device="cuda")
    probabilities = torch.ones(3)
    for draw in (
        lambda: torch.rand(3, generator=generator),
        lambda: torch.randperm(3, generator=generator),
        lambda: torch.bernoulli(probabilities, generator=generator),
        lambda: torch.multinomial(probabilities, 2, generator=generator),
    ):
        with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but"):
            draw()
    words = (
        "CUDA_tensor_apply2: Expected tensors to have CUDA DeviceType, but got tensors with type"
    )
    with pytest.raises(RuntimeError, match=f"{words} cpu and cpu"):
        torch.poisson(probabilities, generator=generator)


def test_generators_share_a_state_for_graphs() -> None:
    first = torch.Generator(device="cuda")
    second = torch.Generator(device="cuda")
    first.manual_seed(9)
    second.graphsafe_set_state(first.graphsafe_get_state())
    torch.rand(2, device="cuda", generator=first)
    assert second.get_offset() == first.get_offset() > 0
    clone = first.clone_state()
    assert clone.get_offset() == first.get_offset()
    torch.rand(2, device="cuda", generator=first)
    assert clone.get_offset() < first.get_offset()


def test_fork_rng_restores_the_state() -> None:
    before = torch.cuda.get_rng_state_all()
    with torch.random.fork_rng(devices=range(min(4, torch.cuda.device_count()))):
        torch.rand(2, device=OTHER)
    after = torch.cuda.get_rng_state_all()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
