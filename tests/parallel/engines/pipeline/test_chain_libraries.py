"""The code of public models: divided with an example, and checked in each call."""

from __future__ import annotations

import contextvars
import copy
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from models_of_libraries import CODE, D, Net, T, _factor, _positions
from torch import Tensor, nn

from anyrig.errors import SpreadError
from anyrig.parallel.engines.pipeline.split.chain_of import chain_of


def samples(count: int) -> Tensor:
    return torch.randn(count, T, D, dtype=torch.float64)


@pytest.mark.parametrize("name", CODE)
def test_the_numbers_of_the_module_for_any_number_of_samples(name: str) -> None:
    module = Net(name).double()
    chain = chain_of(copy.deepcopy(module), example=((samples(4),), {}))
    chain = chain_of(module, example=((samples(4),), {}))
    assert len(chain.blocks) >= 4
    for count in (4, 3, 2, 1):
        x = samples(count)
        wanted, found = module(x), chain.compute(x)
        assert torch.equal(found, wanted)
        gradients = [
            torch.autograd.grad(each.sum(), [*module.parameters()]) for each in (found, wanted)
        ]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def of_dtype(x: Tensor) -> Tensor:
    return x.double() * 2 if x.dtype == torch.float32 else x.double()


def of_rank(x: Tensor) -> Tensor:
    return x if len(x.shape) == 3 else x[None]


def of_samples(x: Tensor) -> Tensor:
    return torch.cat([each[None] * (i + 1) for i, each in enumerate(x)])


def of_a_set(x: Tensor) -> Tensor:
    return x * 2 if x.shape[1] in {T, T + 1} else x


def of_a_dict(x: Tensor) -> Tensor:
    return x * {T: 2.0}.get(x.shape[1], 1.0)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (of_dtype, torch.randn(4, T, D)),
        (of_rank, torch.randn(T, D).double()),
        (of_samples, samples(3)),
        (of_a_set, samples(4)[:, :3]),
        (of_a_dict, samples(4)[:, :3]),
    ],
)
def test_a_call_that_differs_where_code_looks_is_refused(
    first: Callable[[Tensor], Tensor], other: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CODE, "first", lambda net, x: first(x))
    module = Net("first").double()
    chain = chain_of(module, example=((samples(4),), {}))
    x = samples(4)
    assert torch.equal(chain.compute(x), module(x))
    with pytest.raises(SpreadError, match=r"different shapes, dtypes or devices.*test_chain_libr"):
        chain.compute(other)


def test_caches_of_functions_keep_no_stand_ins() -> None:
    for name in ("a_cached_function", "a_cached_function_of_a_size"):
        chain_of(Net(name).double(), example=((samples(4),), {}))
    for found in (_positions(T), _factor(T)):
        assert type(found) is Tensor


def test_an_object_that_holds_values_is_refused_with_a_cure() -> None:
    class Cache:
        def __init__(self, value: Any) -> None:
            self.value = value

    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*[nn.Linear(D, D) for _ in range(4)])

        def forward(self, x: Tensor, use_cache: bool = True) -> Any:
            h = self.layers(x)
            return (h, Cache(x)) if use_cache else (h,)

    module = Cached().double()
    with pytest.raises(SpreadError, match=r"a Cache holds values.*use_cache=False"):
        chain_of(module, example=((samples(2),), {}))
    x = samples(2)
    chain = chain_of(module, example=((x,), {"use_cache": False}))
    assert torch.equal(chain.compute(x, use_cache=False)[0], module(x, use_cache=False)[0])


def test_code_that_depends_on_values_is_refused_with_a_cure() -> None:
    class OwnLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*[nn.Linear(D, D) for _ in range(4)])

        def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
            h = self.layers(x)
            if y is None:
                return h
            return (h - y).square().mean() if y.sum() > 0 else h.sum()

    module, x = OwnLoss().double(), samples(2)
    with pytest.raises(SpreadError, match=r"y\.sum.*leave out the targets.*loss=criterion"):
        chain_of(module, example=((x, x), {}))
    chain = chain_of(module, example=((x,), {}))
    assert torch.equal(chain.compute(x), module(x))


class Drawing(nn.Module):
    """A layer that draws from a source of its own."""

    def __init__(self, source: Any, draw: Callable[[Any], float]) -> None:
        super().__init__()
        self.linear, self.source, self.draw = nn.Linear(D, D), source, draw

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.draw(self.source)


def numpy_source() -> Any:
    return pytest.importorskip("numpy", reason="draws from NumPy's generator").random.default_rng(1)


SOURCES: dict[str, tuple[Callable[[], Any], Callable[[Any], float]]] = {
    "random.Random": (lambda: random.Random(1), lambda source: source.random()),
    "itertools.count": (lambda: itertools.count(3), lambda source: next(source)),
    "count with a step": (lambda: itertools.count(1, 2), lambda source: next(source) % 5),
    "numpy": (numpy_source, lambda source: float(source.random())),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_layer_with_a_source_of_its_own_draws_in_each_call(name: str) -> None:
    source, draw = SOURCES[name]
    module = nn.Sequential(*[Drawing(source(), draw) for _ in range(4)]).double()
    twin = nn.Sequential(*[Drawing(source(), draw) for _ in range(4)]).double()
    twin.load_state_dict(module.state_dict())
    x = samples(2)
    chain = chain_of(module)
    assert len(chain.blocks) >= 4
    for _ in range(3):
        assert torch.equal(chain.compute(x), twin(x))


@pytest.mark.parametrize("name", SOURCES)
def test_a_module_that_draws_itself_is_refused(name: str) -> None:
    source, draw = SOURCES[name]

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*[nn.Linear(D, D) for _ in range(4)])
            self.source = source()

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x) * draw(self.source)

    with pytest.raises(SpreadError, match="forward changes the attribute 'source'"):
        chain_of(Whole().double())


_collected: contextvars.ContextVar[Any] = contextvars.ContextVar("collected", default=None)


class Collecting(nn.Module):
    """Returns the sum of what hooks of its layers collect, if it has a key for it."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(D, D)) for _ in range(4)])
        self.keys = keys
        for layer in self.layers:
            layer.register_forward_hook(self.collect)

    @staticmethod
    def collect(layer: nn.Module, _: Any, output: Tensor) -> None:
        for values in (_collected.get() or {}).values():
            values.append(output)

    def forward(self, x: Tensor) -> Tensor:
        collected: dict[str, list[Tensor]] = {key: [] for key in self.keys}
        token = _collected.set(collected)
        try:
            x = self.layers(x)
        finally:
            _collected.reset(token)
        return sum(itertools.chain(*collected.values()), x)


def test_hooks_that_collect_values_for_forward_are_refused() -> None:
    with pytest.raises(SpreadError, match=r"variable 'collected', in which hooks of Sequential"):
        chain_of(Collecting(("hidden",)).double())
    module, x = Collecting(()).double(), samples(3)
    assert torch.equal(chain_of(module).compute(x), module(x))


def test_hooks_that_a_forward_registers_are_taken_back() -> None:
    class Capturing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*[nn.Linear(D, D) for _ in range(4)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                layer.register_forward_hook(lambda *_: None)
            self.captures = True
            return self.layers(x)

    module = Capturing()
    with pytest.raises(SpreadError, match="changes the attribute 'captures'"):
        chain_of(module)
    assert not any(m._forward_hooks for m in module.modules())
