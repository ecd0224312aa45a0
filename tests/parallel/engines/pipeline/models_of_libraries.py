"""Small modules with the kinds of code that models of public libraries have, three of each kind."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

D, T = 6, 5
CODE: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {}


def code(function: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[nn.Module, Tensor], Tensor]:
    """Register what a `Net` does to its argument of shape (samples, T, D) before its layers."""
    CODE[function.__name__] = function
    return function


class Net(nn.Module):
    """Runs one piece of code, and then layers that can be divided."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.config = SimpleNamespace(eps=0.5, scale=2.0, hidden_act="tanh")
        self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(4))
        self.norm = nn.LayerNorm(D)

    def forward(self, x: Tensor) -> Tensor:
        h = CODE[self.name](self, x)
        for layer in self.layers:
            h = h + layer(h).tanh()
        return self.norm(h)


# Data types.


@code
def raises_for_another_dtype(net: Any, x: Tensor) -> Tensor:
    if x.dtype != net.norm.weight.dtype:
        raise ValueError(f"expected {net.norm.weight.dtype}")
    return x


@code
def converts_if_needed(net: Any, x: Tensor) -> Tensor:
    h = x.float() if x.dtype not in (torch.float32, torch.float64) else x * 2
    return h.to(net.norm.weight.dtype)


@code
def looks_up_a_dtype(net: Any, x: Tensor) -> Tensor:
    factors = {torch.float16: 2.0, torch.float64: 3.0}
    return x * factors.get(x.dtype, 4.0) if x.dtype in factors else x


@code
def branches_on_floating_point(net: Any, x: Tensor) -> Tensor:
    return x * 3 if x.is_floating_point() and not x.is_complex() else x.double()


@code
def finfo_of_a_dtype(net: Any, x: Tensor) -> Tensor:
    mask = torch.full((x.shape[1], x.shape[1]), torch.finfo(x.dtype).min, dtype=x.dtype)
    return torch.softmax(mask.triu(1), -1) @ x


@code
def clamps_to_the_largest_number(net: Any, x: Tensor) -> Tensor:
    return x.clamp(min=-torch.finfo(x.dtype).max / 2, max=torch.finfo(x.dtype).max)


@code
def masked_fill_with_the_smallest_number(net: Any, x: Tensor) -> Tensor:
    scores = (x @ x.transpose(1, 2)).masked_fill(x.mean(-1)[:, None] > 1, torch.finfo(x.dtype).min)
    return scores.softmax(-1) @ x


# Numbers of dimensions, and lengths.


@code
def length_of_a_shape(net: Any, x: Tensor) -> Tensor:
    return x.flatten(1) if len(x.shape) == 4 else x + 1


@code
def length_of_a_tensor(net: Any, x: Tensor) -> Tensor:
    return x / 2 if len(x[0]) == T else x


@code
def asserts_dimensions(net: Any, x: Tensor) -> Tensor:
    if x.ndim != 3 or x.dim() not in (2, 3):
        raise ValueError("three dimensions are needed")
    return x


@code
def unpacks_a_shape(net: Any, x: Tensor) -> Tensor:
    shape = (*x.shape[:-1], -1, 2)
    return x.view(shape).transpose(-1, -2).reshape(*x.shape)


@code
def loops_over_positions(net: Any, x: Tensor) -> Tensor:
    return torch.stack([each * (i + 1) for i, each in enumerate(x.unbind(1))], 1)


@code
def loops_over_chunks(net: Any, x: Tensor) -> Tensor:
    return torch.cat([each.flip(-1) for each in x.chunk(3, -1)], -1)


@code
def drops_paths(net: Any, x: Tensor) -> Tensor:
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    return x * torch.ones(shape, dtype=x.dtype, device=x.device)


# Positions and masks, made of shapes.


@code
def expands_positions(net: Any, x: Tensor) -> Tensor:
    positions = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
    if positions.shape[0] != x.shape[0]:
        positions = positions.expand(x.shape[0], -1)
    return x + positions.unsqueeze(-1)


@code
def compares_two_batches(net: Any, x: Tensor) -> Tensor:
    other = x.mean(1)
    return x + other[:, None] if other.shape[0] == x.shape[0] else x


@code
def makes_a_causal_mask(net: Any, x: Tensor) -> Tensor:
    causal = x.shape[1] > 1
    return F.scaled_dot_product_attention(x, x, x, is_causal=bool(causal))


@code
def squeezes_one_sample(net: Any, x: Tensor) -> Tensor:
    return (x * 2 if x.shape[0] == 1 else x + x).view(x.shape)


def _make_mask(length: Any, dtype: Any, device: Any) -> Tensor:
    places = torch.arange(length, device=device)
    return (places[None] <= places[:, None]).to(dtype)


@code
def a_helper_makes_the_mask(net: Any, x: Tensor) -> Tensor:
    return _make_mask(x.shape[1], x.dtype, x.device) @ x


@code
def a_window_makes_the_mask(net: Any, x: Tensor) -> Tensor:
    places = torch.arange(x.size(1), device=x.device)
    near = (places[None] - places[:, None]).abs() < min(x.size(1), 2)
    return torch.where(near, 1.0, 0.0).to(x) @ x


@code
def a_closure_makes_the_mask(net: Any, x: Tensor) -> Tensor:
    def seen(query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    places = torch.arange(x.shape[1], device=x.device)
    return seen(places[:, None], places[None, :]).to(x.dtype) @ x


# Types and missing values.


@code
def isinstance_of_a_tensor(net: Any, x: Tensor) -> Tensor:
    return x * 2 if isinstance(x, Tensor) and not isinstance(x, (list, tuple)) else x


@code
def isinstance_of_torch_jit(net: Any, x: Tensor) -> Tensor:
    return x * 2 if torch.jit.isinstance(x, Tensor) and torch.is_tensor(x) else x


@code
def isinstance_of_a_size(net: Any, x: Tensor) -> Tensor:
    return x * 2 if isinstance(x.shape, tuple) and isinstance(x.shape[0], int) else x


@code
def power_of_a_stand_in(net: Any, x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + torch.pow(x, 3.0))))


@code
def weights_that_are_none(net: Any, x: Tensor) -> Tensor:
    h, weights = _Pair()(x)
    return h if weights is None else h + weights


@code
def a_missing_mask(net: Any, x: Tensor) -> Tensor:
    mask = {"mask": None}.get("mask")
    return x if mask is None else x * mask


@code
def the_default_of_an_attribute(net: Any, x: Tensor) -> Tensor:
    return x * getattr(net.config, "missing", 1.5) + getattr(net.config, "eps", 0.0)


class _Pair(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x * 2, None


# Devices.


@code
def the_type_of_a_device(net: Any, x: Tensor) -> Tensor:
    name = x.device.type if isinstance(x.device.type, str) and x.device.type != "mps" else "cpu"
    return x * (2 if name in ("cpu", "cuda") else 3)


@code
def devices_are_compared(net: Any, x: Tensor) -> Tensor:
    mask = torch.ones(T, device=x.device)
    return x * (mask if mask.device == x.device else 2 * mask)[:, None]


@code
def asks_for_cuda(net: Any, x: Tensor) -> Tensor:
    return x * 2 if x.is_cuda or x.device.type == "cpu" else x


# Recorders of PyTorch, configurations and caches.


@code
def asks_whether_it_is_traced(net: Any, x: Tensor) -> Tensor:
    return x if torch.jit.is_tracing() or torch.compiler.is_compiling() else x * 2


@code
def a_criterion_made_in_forward(net: Any, x: Tensor) -> Tensor:
    return x * nn.MSELoss(reduction="none")(x, x + 1) + nn.ReLU()(x)


@code
def an_activation_by_name(net: Any, x: Tensor) -> Tensor:
    return {"tanh": torch.tanh, "relu": F.relu}[net.config.hidden_act](x) * net.config.scale


@functools.lru_cache(maxsize=4)
def _positions(length: int) -> Tensor:
    return torch.arange(length) / 7


@functools.cache
def _factor(length: int) -> Tensor:
    return torch.ones(length) * 3


@code
def a_cached_function(net: Any, x: Tensor) -> Tensor:
    return x + _positions(T).to(x)[:, None]


@code
def a_cached_function_of_a_size(net: Any, x: Tensor) -> Tensor:
    return x * _factor(x.shape[1]).to(x)[:, None]


@dataclasses.dataclass
class Keys:
    keys: list[Tensor] = dataclasses.field(default_factory=list)

    def update(self, key: Tensor) -> Tensor:
        self.keys.append(key)
        return torch.cat(self.keys, 1)


@code
def a_cache_of_keys(net: Any, x: Tensor) -> Tensor:
    cache = Keys()
    cache.update(x)
    return cache.update(x * 2)[:, -x.shape[1] :]


class Output(OrderedDict):  # type: ignore[type-arg]
    """A dict with attributes, as transformers' ModelOutput."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


@code
def an_output_with_attributes(net: Any, x: Tensor) -> Tensor:
    out = Output(hidden=x * 2, extra=None)
    return out.hidden if out["extra"] is None else out.extra
