"""The check of one sample: the same call on a virtual device and on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from comparison import Mismatch, aliases, compare, tolerances
from mirror import mirror, mirror_on_cpu
from outcome import Outcome, describe
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from wider import ROUNDING, WIDER, cast, largest_magnitude, narrow

if TYPE_CHECKING:
    from entry import Entry

# These return uninitialized memory.
UNINITIALISED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}
# CUDA lays out these results differently from the CPU, so strides are not compared.
OTHER_STRIDES = {
    "nn.functional.scaled_dot_product_attention",  # CUDA uses another operator
    # CUDA returns contiguous results: aten/src/ATen/native/cuda/MaxUnpooling.cu.
    "nn.functional.max_unpool2d",
}
_ANY_GPU = torch.device("cuda")


@dataclass
class _Side:
    """The operands on one of the two devices, and the call's results or error."""

    arguments: tuple[Any, tuple[Any, ...], dict[str, Any]]
    results: Any = None
    error: Exception | None = None
    gradients: Any = None
    tensors: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tensors = tensors_of(self.arguments)

    def run(self, call: Callable[..., Any], seed: int = 1) -> None:
        torch.manual_seed(seed)
        try:
            self.results = call(*self.arguments)
        except Exception as error:
            self.error = error


class Sample:
    def __init__(self, entry: Entry, sample: Any, outcome: Outcome) -> None:
        self.entry = entry
        self.outcome = outcome
        self.process = sample.output_process_fn_grad
        self.arguments = (sample.input, sample.args, sample.kwargs)
        self.rtol, self.atol = tolerances(entry.op, entry.dtype)
        self.values = entry.op.name not in UNINITIALISED
        self.strides = entry.op.name not in OTHER_STRIDES
        self.identical = True
        self.widened = False

    def check(self) -> None:
        pristine = mirror_on_cpu(self.arguments)
        host, gpu = _Side(mirror(pristine)), _Side(mirror(self.arguments))
        host.run(self.call)
        gpu.run(self.call)
        if gpu.error is not None and not self.entry.kernel_on_gpu:
            self.outcome.refused += 1
            return
        if host.error is not None:
            if gpu.error is not None:
                self.compare_refusals(host.error, gpu.error)
                return
            host = self.widen(pristine)
        elif gpu.error is not None:
            raise gpu.error
        self.compare_results(host, gpu, pristine)
        if self.entry.has_backward:
            self.compare_gradients(host, gpu)
        self.outcome.identical += self.identical
        self.outcome.widened += self.widened
        self.outcome.random |= not self.values

    def call(self, input_: Any, args: Any, kwargs: Any) -> Any:
        op, form = self.entry.op, self.entry.variant.form
        if form == "inplace":
            return op.get_inplace()(_clone(input_), *args, **kwargs)
        if form == "out":
            expected = op(input_, *args, **kwargs)
            return [op(input_, *args, **kwargs, out=out) for out in _outs(expected)]
        return op(input_, *args, **kwargs)

    def compare_refusals(self, host: Exception, gpu: Exception) -> None:
        if self.entry.kernel_on_cpu and type(host) is not type(gpu):
            raise Mismatch(f"the CPU raises {describe(host)}, the device {describe(gpu)}")
        if not self.entry.kernel_on_cpu:
            raise gpu
        self.outcome.refused += 1

    def widen(self, pristine: Any) -> _Side:
        """Compute the reference in a wider dtype if the CPU has no kernel for this dtype."""
        wider = WIDER.get(self.entry.dtype)
        if wider is None:
            raise Mismatch("the CPU refuses this call, and the device does not")
        side = _Side(cast(pristine, self.entry.dtype, wider))
        side.run(self.call)
        if side.error is not None:
            raise side.error
        side.results = narrow(side.results, self.entry.dtype)
        self.widened, self.strides = True, False
        # The CPU rounds after every operator and CUDA once, or the other way round.
        self.rtol = ROUNDING[self.entry.dtype]
        self.atol = self.rtol * max(1.0, largest_magnitude(side.results))
        return side

    def compare_results(self, host: _Side, gpu: _Side, pristine: Any) -> None:
        devices = self.result_devices(gpu)
        try:
            self.compare(host.results, gpu.results, devices)
        except Mismatch:
            if not self.values or not self.is_random(pristine):
                raise
            self.values = False
            self.compare(host.results, gpu.results, devices)
        if self.widened:
            return
        expected = aliases(host.results, host.tensors)
        actual = aliases(gpu.results, gpu.tensors)
        if expected != actual:
            raise Mismatch(f"results share storage with operands {expected} and {actual}")
        # Operands that the call writes to, such as running statistics.
        for mine, theirs in zip(host.tensors, gpu.tensors, strict=True):
            self.compare(mine, theirs, [theirs.device])

    def compare_gradients(self, host: _Side, gpu: _Side) -> None:
        for side in (host, gpu):
            try:
                side.gradients = _gradients(self.process(side.results), side.tensors)
            except Exception as error:
                side.error = error
        if host.error is not None and gpu.error is not None:
            self.compare_refusals(host.error, gpu.error)
            return
        if gpu.error is not None:
            raise gpu.error
        if host.error is not None:
            raise Mismatch(f"the CPU refuses the backward: {describe(host.error)}")
        if host.gradients is None:
            return
        if self.widened:
            host.gradients = narrow(host.gradients, self.entry.dtype)
        try:
            self.compare(host.gradients, gpu.gradients, self.result_devices(gpu))
        except Mismatch as error:
            raise Mismatch(f"gradient: {error}") from None
        self.outcome.backward += 1

    def compare(self, expected: Any, actual: Any, devices: Sequence[torch.device]) -> None:
        self.identical &= compare(
            expected,
            actual,
            devices,
            values=self.values,
            strides=self.strides,
            rtol=self.rtol,
            atol=self.atol,
        )

    def result_devices(self, gpu: _Side) -> list[torch.device]:
        """The devices where results belong: a device among the arguments, else the operands'."""
        leaves = tree_flatten(gpu.arguments)[0]
        named = [torch.device(leaf) for leaf in leaves if _names_device(leaf)]
        if named:
            return [
                torch.device("cuda", torch.cuda.current_device()) if d == _ANY_GPU else d
                for d in named
            ]
        on_gpu = any(tensor.device == self.entry.device for tensor in gpu.tensors)
        return [self.entry.device if on_gpu else torch.device("cpu")]

    def is_random(self, pristine: Any) -> bool:
        """Return whether the call draws random numbers, which CUDA draws differently."""
        draws = _Draws()
        with draws:
            _Side(mirror(pristine)).run(self.call)
        return draws.seen


class _Draws(TorchDispatchMode):
    """A dispatch mode that notices operators tagged as drawing random numbers."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def _names_device(leaf: Any) -> bool:
    if isinstance(leaf, str):
        return leaf == "cpu" or leaf.startswith("cuda")
    return isinstance(leaf, torch.device)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _clone(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, tree)


def _outs(expected: Any) -> list[Any]:
    """Return the tensors to pass as ``out=``: of the right size, empty, and non-contiguous."""

    def scattered(tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros((*tensor.shape, 2), dtype=tensor.dtype, device=tensor.device)[..., 0]

    makers = (torch.zeros_like, lambda tensor: tensor.new_empty(0), scattered)
    return [tree_map(maker, expected) for maker in makers]


def _gradients(results: Any, inputs: list[torch.Tensor]) -> Any:
    outputs = [tensor for tensor in tensors_of(results) if tensor.requires_grad]
    inputs = [tensor for tensor in inputs if tensor.requires_grad]
    if not outputs or not inputs:
        return None
    generator = torch.Generator().manual_seed(0)
    weights = [
        torch.randn(output.shape, dtype=output.dtype, generator=generator).to(output.device)
        for output in outputs
    ]
    return torch.autograd.grad(outputs, inputs, weights, allow_unused=True)
