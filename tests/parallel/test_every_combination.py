"""Every kind of model, on every rig, with 1 to 10 samples: one device's numbers, or a refusal.

A combination is a kind of `every_kind`, a rig or group of ranks, and a number of samples. Outputs,
loss and gradients are compared with those of the undivided batch, to 1e-9 of the largest number.
"""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from every_kind import KINDS, Kind, mean_of, tensors_of
from on_ranks import World, run_cases
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import anyrig
from anyrig.errors import BatchError, SpreadError, ValueNeededError
from anyrig.hardware import spec_of_key
from anyrig.parallel.parts.scatter import scatter_samples
from anyrig.parallel.plans import Replicas
from anyrig.transfer.tree import map_leaves

pytestmark = pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")

SAMPLES = range(1, 11)
LEAD = "cuda:0"


@dataclass(frozen=True)
class Devices:
    """A rig: the number of devices, their shares of a batch, and the GPUs that they imitate."""

    count: int
    shares: tuple[float, ...] | None = None
    gpus: tuple[str, ...] = ()

    def rig(self) -> anyrig.Rig:
        rig = anyrig.Rig.parse(",".join(f"cuda:{index}" for index in range(self.count)))
        if not self.gpus:
            return rig
        devices = zip(rig, self.gpus, strict=True)
        return anyrig.Rig(
            tuple(replace(one, name=gpu, spec=spec_of_key(gpu)) for one, gpu in devices)
        )


RIGS = {
    "1": Devices(1),
    "2": Devices(2),
    "3": Devices(3),
    "4": Devices(4),
    "2 as 3:1": Devices(2, (3, 1)),
    "2 as 0:1": Devices(2, (0, 1)),
    "3 as 3:2:1": Devices(3, (3, 2, 1)),
    "3 as 0:1:2": Devices(3, (0, 1, 2)),
    "4 as 1:0:0:2": Devices(4, (1, 0, 0, 2)),
    "A100 and two T4": Devices(3, None, ("A100-80GB", "T4", "T4")),
}
IN_RANKS = [name for name, kind in KINDS.items() if kind.in_ranks]


class Pair:
    """A spread model of a kind, and the same model on one device."""

    def __init__(self, kind: Kind, device: str | torch.device, *args: Any) -> None:
        torch.manual_seed(0)
        self.kind, self.device = kind, torch.device(device)
        self.one = kind.made().to(self.device, torch.float64)
        self.several = copy.deepcopy(self.one)
        plan = Replicas(sync_batch_norm=True) if kind.training else None
        self.model = anyrig.spread(self.several, *args, plan=plan, dim=kind.dim, loss=kind.loss)

    def batch(self, samples: int) -> tuple[tuple[Any, ...], Tensor | None]:
        inputs = self.kind.inputs(samples)
        target = self.kind.target(samples) if self.kind.loss is not None else None
        moved: tuple[tuple[Any, ...], Tensor | None] = anyrig.move((inputs, target), self.device)
        return moved

    def of_one(self, inputs: tuple[Any, ...], target: Tensor | None) -> Any:
        output = self.one(*inputs)
        if self.kind.loss is None:
            return output
        loss = self.kind.loss(output, target)
        return loss[0] / loss[1] if isinstance(loss, tuple) else loss

    def of_several(self, inputs: tuple[Any, ...], target: Tensor | None) -> Any:
        return self.model(*inputs, **({} if target is None else {"target": target}))


def gradients(output: Any, samples: int, module: nn.Module) -> list[Tensor]:
    module.zero_grad()
    mean = mean_of(output, samples)
    if mean.requires_grad:
        mean.backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]


def assert_same(found: Any, expected: Any, place: str = "output") -> None:
    """Require equal types and shapes, and values to 1e-9 of the largest value of a tensor."""
    assert type(found) is type(expected), place
    if isinstance(expected, Tensor):
        assert found.shape == expected.shape, place
        assert found.dtype == expected.dtype, place
        if expected.numel():
            error = float((found - expected).detach().abs().max())
            assert error <= 1e-9 * max(float(expected.detach().abs().max()), 1e-6), (
                f"{place}: off by {error}"
            )
    elif isinstance(expected, dict):
        assert [*found] == [*expected], place
        for key in expected:
            assert_same(found[key], expected[key], f"{place}[{key!r}]")
    elif isinstance(expected, (list, tuple, PackedSequence)):
        assert len(found) == len(expected), place
        for index, (here, there) in enumerate(zip(found, expected, strict=True)):
            assert_same(here, there, f"{place}[{index}]")
    elif hasattr(expected, "__dict__"):
        assert_same(vars(found), vars(expected), place)
    else:
        assert found == (pytest.approx(expected, 1e-9) if isinstance(expected, float) else expected)


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.gpus(4)
@pytest.mark.parametrize("rig", RIGS)
@pytest.mark.parametrize("name", KINDS)
def test_one_process(name: str, rig: str) -> None:
    kind = KINDS[name]
    pair = Pair(kind, LEAD, RIGS[rig].rig())
    for samples in SAMPLES:
        if kind.training and samples == 1:
            continue  # PyTorch refuses a batch of one sample
        inputs, target = pair.batch(samples)
        expected = pair.of_one(inputs, target)
        try:
            found = pair.of_several(inputs, target)
        except (BatchError, SpreadError) as error:
            if kind.refusal is None or not re.search(kind.refusal, str(error)):
                raise
            continue
        assert_same(found, expected, f"{samples} samples: output")
        assert_same(
            gradients(found, samples, pair.several),
            gradients(expected, samples, pair.one),
            f"{samples} samples: gradients",
        )
        if kind.training:
            assert_same(dict(pair.several.named_buffers()), dict(pair.one.named_buffers()))


def rows_of(samples: int, ranks: int) -> list[int]:
    """Return the sample count of each rank; the first or the last ranks may have fewer, or none."""
    most = -(-samples // ranks)
    rows = [max(0, min(most, samples - most * rank)) for rank in range(ranks)]
    return rows if samples % 2 else rows[::-1]


def _part_of(batch: Any, rows: list[int], rank: int, dim: int) -> Any:
    """Return a rank's samples; tensors one by one, since the division of two states of two samples
    is unclear."""

    def part(leaf: Any, _: Any = None) -> Any:
        return scatter_samples(leaf, [torch.device("cpu")] * len(rows), rows, dim)[rank]

    try:
        return part(batch)
    except BatchError:
        return map_leaves(batch, part, (PackedSequence,))


def try_in_ranks(name: str) -> None:
    """Compare gradients with one device's for all samples, and outputs for this rank's samples."""
    kind, rank, ranks = KINDS[name], dist.get_rank(), dist.get_world_size()
    pair = Pair(kind, "cpu")
    for samples in SAMPLES:
        torch.manual_seed(samples)
        batch, rows = pair.batch(samples), rows_of(samples, ranks)
        if not all(rows) and isinstance(batch[0][0], PackedSequence):
            continue
        mine = _part_of(batch, rows, rank, kind.dim)
        whole = pair.of_one(*batch)
        found = pair.of_several(*mine)
        if kind.loss is not None:
            assert_same(found, whole, f"{rows}: loss")
        elif rows[rank]:
            assert_same(found, pair.of_one(*mine), f"{rows}: output")
        expected = gradients(whole, samples, pair.one)
        assert_same(gradients(found, rows[rank], pair.several), expected, f"{rows}: gradients")


CASES = {f"case_{name}": partial(try_in_ranks, name) for name in IN_RANKS}
globals().update(CASES)


@cache
def world(ranks: int) -> World:
    return run_cases([f"test_every_combination.{case}" for case in CASES], ranks)


# With three ranks, test_three_ranks.py runs the cases.
@pytest.mark.sweep
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", IN_RANKS)
def test_ranks(name: str, ranks: int) -> None:
    assert world(ranks)[f"test_every_combination.case_{name}"] == {}


def try_without_data() -> None:
    """Compare structures and shapes with one device's, or expect a refusal; in its own process."""
    from anyrig.virtual import install

    install("4x1GiB", shape_only=True)
    torch.set_default_dtype(torch.float64)
    tried = refused = 0
    for name, kind in KINDS.items():
        for rig in ("2", "3 as 3:2:1"):
            pair = Pair(kind, LEAD, RIGS[rig].rig())
            for samples in (2, 5, 8):
                tried += 1
                try:
                    batch = pair.batch(samples)
                    expected, found = pair.of_one(*batch), pair.of_several(*batch)
                    gradients(found, samples, pair.several)
                except (BatchError, ValueNeededError) as error:
                    needed = isinstance(error, ValueNeededError)
                    if not needed and not (kind.refusal and re.search(kind.refusal, str(error))):
                        raise
                    refused += 1
                    continue
                assert shapes_of(found) == shapes_of(expected), (name, rig, samples)
    print(tried, refused)


def shapes_of(output: Any) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tensors_of(output)]


@pytest.mark.sweep
def test_without_data() -> None:
    program = "import test_every_combination as combinations; combinations.try_without_data()"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    tried, refused = map(int, done.stdout.split())
    assert tried == len(KINDS) * 2 * 3
    assert refused < tried / 3
