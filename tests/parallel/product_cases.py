"""A case of the product of `product_axes`: three steps compared with one device's, or a refusal."""

from __future__ import annotations

import copy
import itertools
import random
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from pair_of_models import full
from product_axes import (
    BATCHES,
    DEVICES,
    OUTPUTS,
    PROCESSES,
    ROWS,
    TRAININGS,
    WIDTH,
    Batch,
    Net,
    given_batches,
)
from torch import Tensor
from trained_models import first_devices

import anyrig
from anyrig.errors import AnyrigError
from anyrig.parallel.engines.pipeline.over_ranks.elsewhere import Elsewhere
from anyrig.parallel.plans import Pipeline, Plan, Replicas, Shards

EQUAL = "equal"
NO_MEANING = "one device fails, too"

UNEVEN_MEANS = "a mean is taken over the targets that are not ignored, but the parts .* differ"
_BETWEEN = "even"  # the rows of the second step


class Case(NamedTuple):
    """One value of each axis."""

    batch: str
    output: str
    training: str
    devices: str
    rows: str

    def __str__(self) -> str:
        return " | ".join(self)


AXES: tuple[Sequence[str], ...] = (
    tuple(BATCHES),
    tuple(OUTPUTS),
    tuple(TRAININGS),
    tuple(DEVICES),
    tuple(ROWS),
)


class WrongNumbersError(AssertionError):
    """A gradient is not that of one device; or a refusal came after the first step."""


def run_case(case: Case) -> str:
    """Take three steps; return "equal", or the message with which the first step was refused.

    Raise WrongNumbersError if a gradient is not that of one device, or a later step is refused.
    What raises an error on one device, too, has no meaning; that is returned as `NO_MEANING`.
    """
    if not sum(ROWS[case.rows]) and BATCHES[case.batch].from_loader:
        return NO_MEANING  # no loader gives out nothing
    torch.manual_seed(sum(map(ord, str(case))))
    with _double_precision(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = Net(BATCHES[case.batch].read, OUTPUTS[case.output])
        one = _Trained(case, copy.deepcopy(module))
        for step, rows in enumerate((ROWS[case.rows], ROWS[_BETWEEN], ROWS[case.rows])):
            data = [_data(sum(rows)) for _ in range(TRAININGS[case.training].micro_batches)]
            try:
                for rank in range(len(rows)):  # such as no packed sequence of no samples
                    x, w, _ = _part(data[0], rows, rank)
                    BATCHES[case.batch].read(*BATCHES[case.batch].make(x, w))
                expected = one.step([_batch(case, *each, one.lead) for each in data])
            except Exception:
                return NO_MEANING
            if not all(each.isfinite().all() for each in expected.values() if each is not None):
                return NO_MEANING
            try:
                if not step:
                    several = _Trained(case, module, spread=True)
                mine = [_batch(case, *each, several.lead, rows) for each in data]
                found = several.step(mine)
            except AnyrigError as error:
                # A single sample is not divided, and ignored targets are uneven in some steps.
                is_uneven = re.search(UNEVEN_MEANS, str(error))
                if not is_uneven and step > (sum(ROWS[case.rows]) < 2):
                    raise WrongNumbersError(f"refused in step {step + 1}: {error}") from error
                return f"{type(error).__name__}: {error}"
            _compare(found, expected, f"step {step + 1}")
    return EQUAL


class _Trained:
    """A module on one device, or spread as a case says, and its optimizer."""

    def __init__(self, case: Case, module: Net, spread: bool = False) -> None:
        self.module = module
        output, self.training = OUTPUTS[case.output], TRAININGS[case.training]
        shares = DEVICES[case.devices]
        on_cpu = shares is None or case.devices in PROCESSES
        self.lead = torch.device("cpu" if on_cpu else "cuda:0")
        is_pipeline = case.devices.startswith("pipeline")
        if not (spread and is_pipeline):
            module.to(self.lead)
        self.model: Any = module
        # A pipeline is called with tensors on the CPU, and returns outputs on its last device.
        self.loss = self.training.loss and self.training.loss(self._value)
        self._output = output
        self.is_several = spread
        if spread:
            self.model = _spread(case, module, self.loss, self.lead)
        self._is_fused = self.loss is not None

    def _value(self, output: Any) -> Tensor:
        return self._output.value(output, self.module)

    def step(self, batches: list[Batch]) -> dict[str, Tensor | None]:
        """Return the gradients by name after a step of SGD."""
        self.model.zero_grad()
        model = self.model
        if self._is_fused and not self.is_several:
            model = self._fused
        if not self.is_several:
            batches = [each._replace(named={}) for each in batches]
        returned = self.training.step(model, self._value, batches)
        named = {
            name: each
            for name, each in self.model.named_parameters()
            if not isinstance(each, Elsewhere)
        }
        if self.training.returns:
            used = [name for name in named if "unused" not in name]
            return dict(zip(used, map(full, returned), strict=True))
        found = {name: None if p.grad is None else full(p.grad) for name, p in named.items()}
        with torch.no_grad():
            for parameter in named.values():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.01)
        return found

    def _fused(self, *inputs: Any, target: Tensor) -> Tensor:
        loss: Any = self.loss
        found = loss(self.module(*inputs), target)
        return found[0] / found[1] if isinstance(found, tuple) else found


def _spread(case: Case, module: Net, loss: Any, lead: torch.device) -> Any:
    shares = DEVICES[case.devices]
    if case.devices.startswith("pipeline"):
        kind, example = BATCHES[case.batch], _data(4)
        inputs = kind.make(*(each.to(lead) for each in example[:2]))
        plan: Plan = Pipeline(micro_batches=2, example=(inputs, {}))
    elif case.devices == "shards":
        plan = Shards()
    elif case.devices in PROCESSES:
        assert shares is not None
        plan = Replicas(shares=shares, processes=len(shares))
        return anyrig.spread(module, "cpu", plan, loss=loss)
    else:
        plan = Replicas(shares="auto" if shares is None else shares)
    rig = None if shares is None else first_devices(len(shares))
    return anyrig.spread(module, rig, plan, loss=loss)


def _data(samples: int) -> tuple[Tensor, Tensor, Tensor]:
    t = torch.randn(samples, 1)
    t[:1] = 1.0  # of which at least one counts
    return torch.randn(samples, WIDTH), torch.rand(samples) + 1, t


def _batch(
    case: Case,
    x: Tensor,
    w: Tensor,
    t: Tensor,
    lead: torch.device,
    rows: Sequence[int] | None = None,
) -> Batch:
    """Return the batch of one device; with `rows`, what is given to the spread model."""
    kind, needs_leaf = BATCHES[case.batch], case.training in ("penalty", "double backward")
    is_whole = rows is None or DEVICES[case.devices] is not None or "pipeline" in case.devices
    if kind.from_loader and rows is not None:
        place = lead if case.training == "method" else torch.device("cpu")
        *inputs, t = next(given_batches(kind, *(each.to(place) for each in (x, w, t))))
        t = t.to(lead)
        leaf = inputs[0].x.requires_grad_(needs_leaf)
        return Batch(tuple(inputs), leaf, t, {})
    if not is_whole:
        assert rows is not None
        x, w, t = _part((x, w, t), rows, dist.get_rank())
    # A method of the module runs on the lead, with what it is given.
    place = lead if rows is None or case.training == "method" else torch.device("cpu")
    leaf = x.to(place, copy=True).requires_grad_(needs_leaf)
    takes_none = DEVICES[case.devices] is not None or "pipeline" in case.devices
    is_plain = case.training == "method" and takes_none
    named = {"samples": len(x)} if kind.says and not is_plain else {}
    return Batch(kind.make(leaf, w.to(place)), leaf, t.to(lead), named)


def _part(data: Sequence[Tensor], rows: Sequence[int], rank: int) -> list[Tensor]:
    start = sum(rows[:rank])
    return [each[start : start + rows[rank]] for each in data]


def _compare(
    found: dict[str, Tensor | None], expected: dict[str, Tensor | None], place: str
) -> None:
    for name, ours in found.items():
        its = expected[name]
        if ours is None or its is None:
            if ours is not its:
                raise WrongNumbersError(
                    f"{place}: {name} has {'no' if ours is None else 'a'} gradient"
                )
            continue
        ours, its = ours.cpu(), its.cpu()
        error = float((ours - its).abs().max())
        largest = float(its.abs().max())
        if not error <= 1e-9 * max(largest, 1e-3):
            raise WrongNumbersError(
                f"{place}: {name} is off by {error:.2e}, the largest is {largest:.2e}"
            )


@contextmanager
def _double_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def pairwise() -> list[Case]:
    """Return cases that have every pair of values of two axes at least once.

    Each case starts from a pair that no case has yet. The other axes take, one after the other, the
    value that adds most new pairs.
    """
    used: Counter[str] = Counter()
    left = {
        ((i, a), (j, b))
        for i, j in itertools.combinations(range(len(AXES)), 2)
        for a in AXES[i]
        for b in AXES[j]
    }
    order = sorted(left, key=lambda pair: (pair[0][0], pair[1][0], pair))
    cases = []
    for pair in order:
        if pair not in left:
            continue
        chosen = dict(pair)
        for axis in range(len(AXES)):
            if axis not in chosen:
                # Of equal values, the one that was used least.
                news = {value: _new(left, chosen, axis, value) for value in AXES[axis]}
                chosen[axis] = max(news, key=lambda value, news=news: (news[value], -used[value]))
        case = Case(*(chosen[axis] for axis in range(len(AXES))))
        used.update(case)
        left -= {
            ((i, case[i]), (j, case[j])) for i, j in itertools.combinations(range(len(AXES)), 2)
        }
        cases.append(case)
    return cases


def _new(left: set[Any], chosen: dict[int, str], axis: int, value: str) -> int:
    pairs = ((min((i, v), (axis, value)), max((i, v), (axis, value))) for i, v in chosen.items())
    return sum(pair in left for pair in pairs)


def sample(count: int, devices: Sequence[str]) -> list[Case]:
    """Return different cases of the whole product, the same in each run."""
    whole = list(itertools.starmap(Case, itertools.product(*AXES)))
    chosen = [case for case in whole if case.devices in devices]
    return random.Random(0).sample(chosen, min(count, len(chosen)))
