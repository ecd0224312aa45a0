"""`spread(precision=…)`: the dtypes, and nearly the numbers, of one device under autocast."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from every_kind import KINDS, Kind, tensors_of
from test_every_combination import IN_RANKS, RIGS, gradients, rows_of
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn.utils.rnn import PackedSequence

import anyrig
from anyrig.errors import BatchError, SpreadError
from anyrig.parallel.parts.scatter import scatter_samples
from anyrig.parallel.plans import Plan, Replicas, Shards
from forked_programs import run_forked

pytestmark = pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")

SAMPLES = (1, 2, 5)
# Eight steps of the dtype between numbers near 1: sums of parts are rounded differently.
CLOSE = {torch.bfloat16: 8 * 2**-8, torch.float16: 8 * 2**-11}


def assert_close(found: Any, expected: Any, low: torch.dtype, place: str) -> None:
    """Require equal dtypes, and values that differ by steps of `low` at most."""
    here, there = [*tensors_of(found)], [*tensors_of(expected)]
    assert [tensor.dtype for tensor in here] == [tensor.dtype for tensor in there], place
    largest = max(
        (float(tensor.detach().abs().max()) for tensor in there if tensor.numel()), default=0
    )
    for one, other in zip(here, there, strict=True):
        assert one.shape == other.shape, place
        if one.numel():
            error = float((one.double() - other.double()).detach().abs().max())
            assert error <= CLOSE[low] * max(largest, 1e-3), f"{place}: off by {error}"


class Pair:
    """A model of a kind spread with `precision=`, and the same model alone under autocast."""

    def __init__(self, kind: Kind, low: torch.dtype, device: str, *rig: Any, plan: Plan) -> None:
        torch.manual_seed(0)
        self.kind, self.low, self.device = kind, low, torch.device(device)
        self.one = kind.made().to(device)
        self.several = copy.deepcopy(self.one)
        if kind.training:
            plan = Replicas(sync_batch_norm=True)
        self.model = anyrig.spread(
            self.several, *rig, plan=plan, dim=kind.dim, loss=kind.loss, precision=low
        )

    def batch(self, samples: int) -> tuple[tuple[Any, ...], Tensor | None]:
        target = self.kind.target(samples) if self.kind.loss is not None else None
        moved: Any = anyrig.move((self.kind.inputs(samples), target), self.device)
        return moved

    def of_one(self, inputs: tuple[Any, ...], target: Tensor | None) -> Any:
        with torch.autocast(self.device.type, self.low):
            output = self.one(*inputs)
            if self.kind.loss is None:
                return output
            loss = self.kind.loss(output, target)
            return loss[0] / loss[1] if isinstance(loss, tuple) else loss

    def of_several(self, inputs: tuple[Any, ...], target: Tensor | None) -> Any:
        return self.model(*inputs, **({} if target is None else {"target": target}))


@pytest.mark.gpus(3)
@pytest.mark.parametrize("low", CLOSE, ids=str)
@pytest.mark.parametrize("rig", ["1", "3", "2 as 0:1", "3 as 3:2:1"])
@pytest.mark.parametrize("name", KINDS)
def test_one_process(name: str, rig: str, low: torch.dtype) -> None:
    kind = KINDS[name]
    pair = Pair(kind, low, "cuda:0", RIGS[rig].rig(), plan=Replicas())
    for samples in SAMPLES:
        if kind.training and samples == 1:
            continue  # PyTorch refuses a batch of one sample
        batch = pair.batch(samples)
        expected = pair.of_one(*batch)
        try:
            found = pair.of_several(*batch)
        except (BatchError, SpreadError) as error:
            if kind.refusal is None or not re.search(kind.refusal, str(error)):
                raise
            continue
        assert_close(found, expected, low, "output")
        ours = gradients(found, samples, pair.several)
        assert_close(ours, gradients(expected, samples, pair.one), low, "gradients")
        assert not torch.is_autocast_enabled("cuda")


def in_single_precision(case: Callable[[], None]) -> Callable[[], None]:
    """Run a case in single precision: autocast ignores the default double precision of ranks."""

    def run() -> None:
        torch.set_default_dtype(torch.float32)
        try:
            case()
        finally:
            torch.set_default_dtype(torch.float64)

    return run


def try_in_ranks(name: str, plan: Plan) -> None:
    kind, rank, ranks = KINDS[name], dist.get_rank(), dist.get_world_size()
    low = torch.bfloat16
    pair = Pair(kind, low, "cpu", plan=plan)
    for samples in SAMPLES:
        torch.manual_seed(samples)
        batch, rows = pair.batch(samples), rows_of(samples, ranks)
        if not all(rows) and isinstance(batch[0][0], PackedSequence):
            continue
        mine = scatter_samples(batch, [pair.device] * ranks, rows, kind.dim)[rank]
        pair.several.zero_grad()  # after a forward, FSDP2 has replaced the parameters
        whole, found = pair.of_one(*batch), pair.of_several(*mine)
        if kind.loss is not None:
            assert_close(found, whole, low, f"{rows}: loss")
        elif rows[rank]:
            assert_close(found, pair.of_one(*mine), low, f"{rows}: output")
        ours = [full(each) for each in gradients(found, rows[rank], pair.several)]
        assert_close(ours, gradients(whole, samples, pair.one), low, f"{rows}: gradients")


def full(tensor: Any) -> Tensor:
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


@in_single_precision
def case_join_computes_without_rows_in_the_same_dtype() -> None:
    torch.manual_seed(0)
    seen: list[torch.dtype] = []
    net = nn.Linear(4, 3)
    net.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    model = anyrig.spread(net, precision="bfloat16")
    with model.join():
        for _ in range(1 + dist.get_rank()):
            model(torch.randn(2, 4)).float().sum().backward()
    assert len(seen) >= 2
    assert {*seen} == {torch.bfloat16}


def case_a_policy_conflicts() -> None:
    plan = Shards(mixed_precision=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    with pytest.raises(SpreadError, match="use one of the two"):
        anyrig.spread(nn.Linear(4, 3), plan=plan, precision="bfloat16")


PLANS = {"replicate": Replicas(), "shard": Shards()}
KINDS_OF_CASES = {f"case_{name}_{way}": (name, PLANS[way]) for name in IN_RANKS for way in PLANS}
CASES = {
    case: in_single_precision(partial(try_in_ranks, *given))
    for case, given in KINDS_OF_CASES.items()
}
globals().update(CASES)
OTHERS = ["case_join_computes_without_rows_in_the_same_dtype", "case_a_policy_conflicts"]


@pytest.mark.parametrize("word", ["bfloat16", "torch.float16", "half", torch.half])
def test_explain_names_the_dtype(word: Any) -> None:
    model = anyrig.spread(nn.Linear(4, 3), "cpu", precision=word)
    expected = torch.bfloat16 if word == "bfloat16" else torch.float16
    assert model(torch.randn(2, 4)).dtype is expected
    text = str(anyrig.explain(model))
    assert f"autocast in {str(expected).removeprefix('torch.')}" in text
    assert ("GradScaler" in text) is (expected is torch.float16)


@pytest.mark.parametrize("word", ["float32", "fp16", torch.float64, "nn", 16])
def test_other_dtypes_are_refused(word: Any) -> None:
    with pytest.raises(SpreadError, match='use "bfloat16" or "float16"'):
        anyrig.spread(nn.Linear(4, 3), "cpu", precision=word)


def test_compiled_on_one_device_as_it_is_uncompiled() -> None:
    model = anyrig.spread(nn.Linear(4, 3), "cpu", precision="bfloat16")
    x = torch.randn(2, 4)
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=0)


def test_outputs_of_a_module_compiled_in_place_are_scattered() -> None:
    model = anyrig.spread(nn.Linear(4, 3), "cpu", precision="bfloat16")
    x = torch.randn(2, 4)
    expected = model(x)
    model.compile(backend="eager")
    for _ in range(2):
        (found,) = model.scattered(x)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


def test_a_gpu_without_bfloat16_is_named() -> None:
    program = """
import anyrig, torch
from anyrig.errors import SpreadError
from anyrig.virtual import install
install("A100-40GB+T4")
try:
    anyrig.spread(torch.nn.Linear(4, 3), precision="bfloat16")
except SpreadError as error:
    print(error)
print(anyrig.spread(torch.nn.Linear(4, 3), precision="float16")(torch.randn(4, 4)).dtype)
"""
    done = run_forked("-c", program)
    assert done.returncode == 0, done.stderr
    assert "cuda:1 does not: its hardware has no bfloat16" in done.stdout
    assert 'Use precision="float16"' in done.stdout
    assert "torch.float16" in done.stdout.splitlines()[-1]
