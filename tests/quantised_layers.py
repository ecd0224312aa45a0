"""Layers of quantised weights as torchao and bitsandbytes make them, without these libraries."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class ScaledTensor(Tensor):
    """Wraps int8 codes and a scale for each row, as torchao's weights do; computes in float32."""

    codes: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor, kind: str = "rows") -> ScaledTensor:
        made: ScaledTensor = Tensor._make_wrapper_subclass(
            cls, codes.shape, dtype=scale.dtype, device=codes.device
        )
        made.codes, made.scale, made.kind = codes, scale, kind
        return made

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["codes", "scale"], {"kind": self.kind}

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> ScaledTensor:
        return ScaledTensor(inner["codes"], inner["scale"], context["kind"])

    def dequantise(self) -> Tensor:
        return self.codes * self.scale

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is functional.linear:
            args = [each.dequantise() if isinstance(each, cls) else each for each in args]
            return function(*args, **(kwargs or {}))
        return super().__torch_function__(function, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        aten = torch.ops.aten
        first, kwargs = args[0], kwargs or {}
        if function in (aten.detach.default, aten.clone.default, aten.alias.default):
            return first.mapped(function)
        if function is aten._to_copy.default:
            device = kwargs.get("device")
            return first.mapped(lambda inner: inner.to(device, copy=True))
        if function is aten.copy_.default:
            for own, other in zip(first.inner(), args[1].inner(), strict=True):
                own.copy_(other)
            return first
        raise NotImplementedError(f"{function} of a ScaledTensor")

    def inner(self) -> tuple[Tensor, Tensor]:
        return self.codes, self.scale

    def mapped(self, change: Any) -> ScaledTensor:
        return ScaledTensor(change(self.codes), change(self.scale), self.kind)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"ScaledTensor{tuple(self.shape)}"


def quantise(layer: nn.Linear, kind: str = "rows") -> nn.Linear:
    """Give a linear layer a frozen `ScaledTensor` as its weight."""
    weight = layer.weight.detach()
    weight = weight.dequantise() if isinstance(weight, ScaledTensor) else weight
    scale = weight.abs().amax(1, keepdim=True) / 127
    codes = (weight / scale).round().to(torch.int8)
    layer.weight = nn.Parameter(ScaledTensor(codes, scale, kind), requires_grad=False)
    return layer


class CodeState:
    """What `Codes` carries, as bitsandbytes' QuantState, with a number that is no tensor."""

    def __init__(
        self, absmax: Tensor, shape: torch.Size, blocksize: int, offset: float = 0.0
    ) -> None:
        self.absmax, self.shape, self.blocksize = absmax, shape, blocksize
        self.offset = offset
        self.dtype, self.quant_type, self.nested = torch.float32, "int8", False

    def as_dict(self) -> dict[str, Tensor]:
        packed = f"{[*self.shape]};{self.blocksize};{self.offset}".encode()
        return {
            "absmax": self.absmax,
            "quant_state.library__int8": torch.tensor([*packed], dtype=torch.uint8),
        }

    @classmethod
    def from_dict(cls, parts: dict[str, Tensor], device: Any) -> CodeState:
        text = bytes(parts["quant_state.library__int8"].tolist()).decode()
        shape, blocksize, offset = text.split(";")
        sizes = torch.Size(int(each) for each in shape.strip("[]").split(","))
        return cls(parts["absmax"].to(device), sizes, int(blocksize), float(offset))

    def to(self, device: Any) -> None:
        self.absmax = self.absmax.to(device)


class Codes(nn.Parameter):
    """Codes of a weight, with a separate state; its ``to`` moves the state, too."""

    def __new__(cls, data: Tensor, state: CodeState | None = None) -> Codes:
        made: Codes = Tensor._make_subclass(cls, data, False)
        made.quant_state = state
        return made

    def to(self, *args: Any, **kwargs: Any) -> Any:
        device = torch._C._nn._parse_to(*args, **kwargs)[0]
        state = self.quant_state
        if device is not None and state is not None:
            state.to(device)
        return Codes(super().to(*args, **kwargs), state)

    def __deepcopy__(self, memo: Any) -> Codes:
        return Codes(self.data.clone(), copy.deepcopy(self.quant_state, memo))


class CodedLinear(nn.Module):
    """A linear layer with `Codes`: it saves the state along with its weight, and loads none."""

    def __init__(self, inputs: int, outputs: int, blocksize: int = 4) -> None:
        super().__init__()
        weight = torch.randn(outputs, inputs)
        absmax = weight.abs().reshape(-1, blocksize).amax(1)
        codes = (weight.reshape(-1, blocksize) / absmax[:, None] * 127).round().to(torch.int8)
        state = CodeState(absmax, weight.shape, blocksize, float(absmax.mean()))
        self.weight = Codes(codes, state)
        self.bias = nn.Parameter(torch.randn(outputs))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, each in self.weight.quant_state.as_dict().items():
            destination[f"{prefix}weight.{name}"] = each

    def forward(self, x: Tensor) -> Tensor:
        state = self.weight.quant_state
        weight = (self.weight.data * (state.absmax[:, None] / 127) + state.offset).reshape(
            state.shape
        )
        return functional.linear(x, weight, self.bias)


class Taken:
    """What `TakingLinear` takes over from its weight, as bitsandbytes' MatmulLtState."""

    def __init__(self) -> None:
        self.scale: Tensor | None = None


class RowCodes(nn.Parameter):
    """Codes of a weight, and a scale for each row until the layer takes the scale."""

    def __new__(cls, data: Tensor, scale: Tensor | None = None) -> RowCodes:
        made: RowCodes = Tensor._make_subclass(cls, data, False)
        made.scale = scale
        return made

    def to(self, *args: Any, **kwargs: Any) -> Any:
        device = torch._C._nn._parse_to(*args, **kwargs)[0]
        scale = self.scale if self.scale is None or device is None else self.scale.to(device)
        return RowCodes(super().to(*args, **kwargs), scale)

    def __deepcopy__(self, memo: Any) -> RowCodes:
        return RowCodes(self.data.clone(), copy.deepcopy(self.scale, memo))


class TakingLinear(nn.Module):
    """A linear layer that takes over the scale of its weight in its first forward pass."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        weight = torch.randn(outputs, inputs)
        scale = weight.abs().amax(1, keepdim=True) / 127
        self.weight = RowCodes((weight / scale).round().to(torch.int8), scale)
        self.bias = nn.Parameter(torch.randn(outputs))
        self.state = Taken()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        scale = self.weight.scale if self.weight.scale is not None else self.state.scale
        destination[f"{prefix}SCB"] = scale

    def _apply(self, change: Any, recurse: bool = True) -> Any:
        for holder in (self.weight, self.state):
            if holder.scale is not None:
                holder.scale = change(holder.scale)
        return super()._apply(change, recurse)

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.scale is not None:
            self.state.scale, self.weight.scale = self.weight.scale, None
        return functional.linear(x, self.weight.data * self.state.scale, self.bias)


LAYERS = {
    "wrapper": lambda: quantise(nn.Linear(8, 8)),
    "codes with a state": lambda: CodedLinear(8, 8),
    "layer that takes over": lambda: TakingLinear(8, 8),
}


def make_quantised(kind: str, seed: int = 0) -> nn.Sequential:
    """Return a model of two quantised layers and one that is trained."""
    torch.manual_seed(seed)
    layers = [LAYERS[kind](), nn.ReLU(), LAYERS[kind](), nn.ReLU(), nn.Linear(8, 8)]
    for layer in layers[:3]:
        layer.requires_grad_(False)
    return nn.Sequential(*layers)
