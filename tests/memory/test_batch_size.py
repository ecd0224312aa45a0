"""`fit_batch_size` finds the largest batch in few probes, and restores the program's state."""

from __future__ import annotations

import copy
import gc
import random
import warnings
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import anyrig
from anyrig.errors import LaunchError, MemoryTrackingError
from anyrig.memory import Probe, fit_batch_size
from forked_programs import run_forked

MIB = 2**20


@pytest.mark.parametrize(
    "model", ["perceptron", pytest.param("convolutional", marks=pytest.mark.sweep), "transformer"]
)
def test_the_batch_is_near_the_largest_one(model: str) -> None:
    program = f"import fitted_models; fitted_models.compare({model!r})"
    ended = run_forked("-c", program, cwd=Path(__file__).parent)
    assert ended.returncode == 0, ended.stderr
    on_16, on_40, on_80 = [tuple(map(int, line.split())) for line in ended.stdout.splitlines()]
    for samples, found, probes, largest in (on_16, on_40, on_80):
        assert 0.97 * largest <= samples <= found <= largest
        assert probes <= 12
    assert on_16[0] < on_40[0] < on_80[0]


class Training:
    """A training step with everything whose state a step changes."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(2048, 64), nn.BatchNorm1d(64), nn.Linear(64, 1)).cuda()
        self.optimizer = torch.optim.Adam(self.net.parameters(), 1e-2)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=4.0, growth_interval=1)
        dataset = TensorDataset(torch.arange(8.0))
        own = torch.Generator()
        self.order = torch.Generator()
        sampler = RandomSampler(dataset, generator=self.order)
        self.loader = DataLoader(dataset, sampler=sampler, generator=own)
        self.generator = own

    def step(self, samples: int) -> None:
        next(iter(self.loader))
        x = torch.randn(samples + 1, 2048, device="cuda") * random.random() * numpy.random.rand()
        self.optimizer.zero_grad(set_to_none=False)  # so that a step writes to the gradients
        self.scaler.scale(self.net(x).square().mean()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()

    def state(self) -> dict[str, Any]:
        state = {
            "net": self.net.state_dict(),
            "gradients": [p.grad for p in self.net.parameters()],
            "training": [module.training for module in self.net.modules()],
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "generator": self.generator.get_state(),
            "order": self.order.get_state(),
            "host": torch.get_rng_state(),
            "device": torch.cuda.get_rng_state(),
            "python": random.getstate(),
            "numpy": numpy.random.get_state()[1].tolist(),
        }
        return copy.deepcopy(state)


@pytest.fixture
def small_gpu() -> Any:
    """Let PyTorch reserve 64 MiB more of the first GPU than now; return the bytes for tensors."""
    one = torch.ones(1, 1, device="cuda", requires_grad=True)
    with warnings.catch_warnings():
        # PyTorch's thread for backward passes begins without a context, and cuBLAS sets it.
        warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA")
        one.mm(one).backward()  # cuBLAS keeps a workspace for each direction, up to 32 MiB
    gc.collect()
    torch.cuda.empty_cache()
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    limit_bytes = torch.cuda.memory_reserved(0) + 64 * MIB
    torch.cuda.set_per_process_memory_fraction(limit_bytes / total_bytes, 0)
    yield limit_bytes - torch.cuda.memory_allocated(0)
    torch.cuda.set_per_process_memory_fraction(1.0, 0)


def assert_equal(found: Any, expected: Any, place: str = "state") -> None:
    assert type(found) is type(expected), place
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected), place
    elif isinstance(expected, dict):
        assert [*found] == [*expected], place
        for key in expected:
            assert_equal(found[key], expected[key], f"{place}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), place
        for index, (here, there) in enumerate(zip(found, expected, strict=True)):
            assert_equal(here, there, f"{place}[{index}]")
    else:
        assert found == expected, place


@pytest.mark.gpus(1)
@pytest.mark.parametrize("steps_before", [0, 2])
def test_the_state_is_restored(steps_before: int, small_gpu: int) -> None:
    training = Training()
    for _ in range(steps_before):
        training.step(4)
    training.net[1].eval()
    before = training.state()
    fit = fit_batch_size(training.step)
    assert_equal(training.state(), before)
    assert 1000 < fit.samples < 1.1 * small_gpu / (4 * 2048)  # a batch of 2048 floats a sample
    training.step(fit.samples)
    training.step(4)
    assert fit.probes[-1].samples > 1


@pytest.mark.gpus(1)
@pytest.mark.parametrize("error", [RuntimeError("on fire"), KeyboardInterrupt()])
def test_the_state_is_restored_after_an_error(error: BaseException, small_gpu: None) -> None:
    training = Training()
    before = training.state()

    def step(samples: int) -> None:
        training.step(samples)
        if samples > 8:
            raise error

    with pytest.raises(type(error)):
        fit_batch_size(step)
    assert_equal(training.state(), before)


@pytest.mark.gpus(1)
def test_one_sample_that_does_not_fit(small_gpu: None) -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 80\.00 MiB"):
        fit_batch_size(lambda samples: torch.empty(samples, 80 * MIB, dtype=torch.int8).cuda())


@pytest.mark.gpus(1)
def test_the_first_batch_is_computed_with_the_optimizers_state(small_gpu: None) -> None:
    state = []

    def step(samples: int) -> None:
        x = torch.empty(samples, MIB, device="cuda", dtype=torch.int8)
        del x
        if not state:
            state.append(torch.empty(16 * MIB, device="cuda", dtype=torch.int8))

    fit = fit_batch_size(step, start=52)
    assert not fit.probes[0].fits
    assert fit.largest_samples < 49


@pytest.mark.gpus(1)
def test_a_global_batch_is_divided(small_gpu: None) -> None:
    fit = fit_batch_size(
        lambda samples: torch.empty(samples, MIB, device="cuda", dtype=torch.int8),
        global_batch=100,
        margin=0.0,
    )
    assert fit.largest_samples in (63, 64)
    assert fit.micro_batches == (50, 50)
    assert "a global batch of 100 takes 2 of 50" in str(fit)
    with_margin = fit_batch_size(
        lambda samples: torch.empty(samples, MIB, device="cuda", dtype=torch.int8),
        global_batch=100,
        margin=0.5,
    )
    assert with_margin.micro_batches == (25,) * 4  # 32 are to be used, although 64 fit
    uneven = fit_batch_size(lambda samples: None, global_batch=7, largest=3)
    assert uneven.micro_batches == (3, 2, 2)
    assert (uneven.samples, uneven.reason) == (3, "no larger batch was asked for")


@pytest.mark.gpus(1)
def test_no_batch_above_the_largest_one_is_tried(small_gpu: None) -> None:
    fit = fit_batch_size(lambda samples: None, start=100, largest=5)
    assert [probe.samples for probe in fit.probes] == [5]


@pytest.mark.gpus(1)
def test_a_batch_has_one_sample_at_least(small_gpu: None) -> None:
    fit = fit_batch_size(
        lambda samples: torch.empty(samples, 20 * MIB, device="cuda", dtype=torch.int8),
        margin=0.9,
    )
    assert fit.largest_samples in (2, 3)
    assert fit.samples == 1


def test_a_probe_is_one_line() -> None:
    assert str(Probe(4, True, 3 * 2**20)) == "4: fits, peak 3.00 MiB"
    assert str(Probe(4, True, None)) == "4: fits"
    assert str(Probe(8, False, None)) == "8: out of memory"
    assert str(Probe(8, False, None, (0, 2))) == "8: out of memory on ranks 0, 2"


@pytest.mark.gpus(1)
@pytest.mark.parametrize("samples", [10**9, 10**12, 10**18 + 7, 10**40])
def test_a_global_batch_of_too_many_parts_is_refused(samples: int, small_gpu: None) -> None:
    with pytest.raises(MemoryTrackingError, match=f"^global_batch={samples} takes [0-9]+ micro-"):
        fit_batch_size(
            lambda samples: torch.empty(samples, MIB, device="cuda", dtype=torch.int8),
            global_batch=samples,
        )


@pytest.mark.gpus(1)
def test_the_first_batch_may_be_too_large(small_gpu: None) -> None:
    fit = fit_batch_size(
        lambda samples: torch.empty(samples, MIB, device="cuda", dtype=torch.int8), start=1000
    )
    assert not fit.probes[0].fits
    assert fit.largest_samples in (63, 64)
    assert "1000: out of memory" in str(fit)


@pytest.mark.gpus(1)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start": 0}, "start=0 is not a number of samples"),
        ({"largest": -1}, "largest=-1 is not a number"),
        ({"global_batch": 0}, "global_batch=0 is not a number"),
        ({"margin": 1.0}, r"margin=1\.0 is not a fraction"),
    ],
)
def test_numbers_out_of_range(options: dict[str, Any], words: str) -> None:
    with pytest.raises(MemoryTrackingError, match=words):
        fit_batch_size(lambda samples: None, **options)


def test_a_machine_without_gpus_is_refused() -> None:
    with pytest.raises(LaunchError, match="there is no CUDA device"):
        anyrig.launch(fit_batch_size, (print,), rig="cpu", nproc_per_device=1)
