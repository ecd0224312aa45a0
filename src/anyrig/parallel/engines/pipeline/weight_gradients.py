"""A backward pass in two halves: gradients of inputs now, gradients of weights later.

::

    forward    input ─▶ compute(input, weight without graph) ─▶ _Catch, an identity ─▶ output
    I          gradient of output ─▶ _Catch ─▶ PyTorch's backward of compute ─▶ gradient of input
                                       └─ keeps input and gradient of output
    W          gradients of weight and bias, from what was kept

Only the products of `products` are split; they have nearly all of the work on parameters. PyTorch
computes all other gradients within the first half. A parameter may be used in both ways: its
gradient is the sum.

Linear maps, the most frequent product, are one node instead: `_LinearMap` computes the gradient of
its input itself. A node costs time in Python, and a stage has dozens in each micro-batch.

PyTorch's own pipelining runs autograd a second time, from the nodes at which the paths to inputs
and to weights part. That has been wrong for nodes with several outputs
(https://github.com/pytorch/pytorch/issues/170277) and for weights that are used twice
(https://github.com/pytorch/pytorch/issues/180952).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .products import PRODUCTS, Compute, Product, Use, is_plain, read_product, use_of_linear


class DeferredWeights:
    """The gradients of weights that one forward pass leaves for later.

    ::

        deferred = DeferredWeights(stage.parameters())
        with deferred.deferring():
            output = stage(input)
        with deferred.collecting():
            torch.autograd.backward(output, gradient)
        ...
        deferred.compute()

    From the backward pass to `compute`, the input of each product and the gradient of its output
    stay in memory; the rest of the graph is freed as usual. The gradients that enter the backward
    pass must not be written to meanwhile.

    The backward pass has to reach the parameters: leave out ``inputs=``, or name them there.

    Parameters with hooks are left to PyTorch, so that hooks get whole gradients. So is what the
    forward pass computes inside of `torch.utils.checkpoint` or of other hooks on saved tensors,
    since a recomputation must save the same tensors. To defer these too, enter `deferring` inside
    the function that is computed again.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        """Begin without deferred gradients.

        Args:
            parameters: the leaves whose gradients may be deferred.
        """
        self._parameters = {id(parameter): parameter for parameter in parameters}
        self._kept: deque[tuple[Use, Tensor, Tensor]] = deque()
        self._is_collecting = False

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Return the context of the forward pass; `TorchLayers.deferring` costs less."""
        mode = _ProductMode(self)
        try:
            with mode:
                yield
        finally:
            mode.end()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Return the context of the backward pass.

        A backward pass outside this context, such as one within the forward pass, computes the
        gradients of weights at once. So does a backward pass that creates a graph.
        """
        self._is_collecting = True
        try:
            yield
        finally:
            self._is_collecting = False

    def compute(self) -> None:
        """Compute the deferred gradients, add them to ``.grad``, and free what was kept."""
        compute_weights([self])

    def is_deferrable(self, value: Any) -> bool:
        """Return whether a value is a parameter whose gradient can be deferred."""
        return (
            id(value) in self._parameters
            and value.requires_grad
            # Private, as PyTorch has no other way to ask. None until the first hook.
            and not value._backward_hooks
            and not value._post_accumulate_grad_hooks
        )

    def takes(self, use: Use, factor: Tensor, gradient: Tensor) -> bool:
        """Keep what the gradients of a `Use` need, unless they have to be computed at once."""
        if not self._is_collecting or torch.is_grad_enabled():
            return False
        self._kept.append((use, factor.detach(), gradient.detach()))
        return True


def compute_weights(passes: Sequence[DeferredWeights]) -> None:
    """Compute the deferred gradients of several forward passes, as `DeferredWeights.compute` does.

    The passes take turns, product by product: those of one module then add to each gradient
    one after another, while it is in the processor's cache.
    """
    with torch.no_grad():
        while any(each._kept for each in passes):
            for each in passes:
                if each._kept:
                    use, factor, gradient = each._kept.popleft()
                    use.accumulate_gradients(factor, gradient)


class Products:
    """The products of one forward pass, computed so that the gradients of weights are deferred."""

    def __init__(self, deferred: DeferredWeights) -> None:
        self._deferred = deferred
        self._hooks = _saved_tensor_hooks()

    def compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return ``func(*args, **kwargs)``."""
        if func is functional.linear:
            return self.linear(*args, **kwargs)
        return self._compute(func, args, kwargs)

    def linear(self, input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002
        """Return ``torch.nn.functional.linear(input, weight, bias)``."""
        deferred = self._deferred
        if (
            not deferred.is_deferrable(weight)
            or not (bias is None or deferred.is_deferrable(bias))
            or not is_plain(input)
            or not weight.dim() == 2 <= input.dim()
            or torch.is_autocast_enabled(input.device.type)
            or not self._is_open()
        ):
            return self._compute(functional.linear, (input, weight, bias), {})
        use = use_of_linear(weight, bias)
        if input.dim() == 2:
            return _LinearMap.apply(input, weight, bias, (use, deferred))  # type: ignore[no-untyped-call]
        # With a higher-dimensional input, PyTorch may return a view, which could not be changed in
        # place if it came from a function of ours.
        shape = input.shape
        rows = _LinearMap.apply(  # type: ignore[no-untyped-call]
            input.reshape(-1, shape[-1]), weight, bias, (use, deferred)
        )
        return rows.view(*shape[:-1], weight.shape[0])

    def _compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._is_open():
            product = read_product(func, args, kwargs, self._deferred.is_deferrable)
            if product is not None:
                return _compute_product(product, self._deferred)
        return func(*args, **kwargs)

    def _is_open(self) -> bool:
        return (
            torch.is_grad_enabled()
            and _saved_tensor_hooks() is self._hooks
            # Private; torch.autograd.Function asks the same. Transforms such as torch.func.grad
            # have graphs of their own.
            and not torch._C._are_functorch_transforms_active()
        )


class _ProductMode(TorchFunctionMode):
    """Finds the products of a forward pass among all calls of PyTorch."""

    def __init__(self, deferred: DeferredWeights) -> None:
        super().__init__()
        self._products = Products(deferred)
        self._names: dict[str, Any] = {}

    def end(self) -> None:
        """Drop the copies of functions, which refer to each other."""
        self._names.clear()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Every call of PyTorch comes here, and most are no products: leave these first.
        kwargs = kwargs or {}
        if func not in _INTERCEPTED:
            return func(*args, **kwargs)
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)  # a compiled part has a backward pass of its own
        if func is functional.multi_head_attention_forward:
            return self._attention(*args, **kwargs)
        return self._products.compute(func, args, kwargs)

    @cached_property
    def _attention(self) -> Callable[..., Any]:
        """`torch.nn.functional.multi_head_attention_forward` with linear maps of this mode.

        Within a mode, PyTorch's function would call the mode's handler again, forever, and each of
        its 40 other calls would come there, too. The copies have a `has_torch_function` of their
        own.
        """
        attention = attention_with(self._products.linear, has_torch_function=lambda _: False)
        self._names = attention.__globals__
        return attention


def attention_with(linear: Callable[..., Any], **names: Any) -> FunctionType:
    """Return `torch.nn.functional.multi_head_attention_forward` with another `linear`.

    It is a copy, as are the two functions that compute its linear maps of the input. The copies
    find `linear` and `names` in place of PyTorch's functions of these names.
    """
    original: Any = functional.multi_head_attention_forward
    found = {**original.__globals__, "linear": linear, **names}
    # Private; without them, the product with the input's weight would not be deferred, which the
    # case "attention" of `test_gradients_are_those_of_autograd` would notice.
    for name in ("_in_projection", "_in_projection_packed"):
        found[name] = copy_with(found[name], found)
    return copy_with(original, found)


def _saved_tensor_hooks() -> Any:
    """Return the innermost hooks on saved tensors, such as those of `torch.utils.checkpoint`."""
    # Private: PyTorch has no public way to ask. torch.compile asks the same.
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return None if hooks is None else hooks[0]


def copy_with(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    """Return a copy of a function that finds global names in `names`."""
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _compute_product(product: Product, deferred: DeferredWeights) -> Tensor:
    factor, use = product.input, product.use
    kind = factor.device.type
    if torch.is_autocast_enabled(kind) and factor.dtype is not torch.float64:
        factor = factor.to(torch.get_autocast_dtype(kind))  # what autocast itself would save
    bias = product.bias if use.bias is None else use.bias.detach()
    output = product.compute(factor, use.weight.detach(), bias)
    if output._is_view():
        output = output.clone()  # _Catch takes over the output, which must not be a view
    caught: Tensor = _Catch.apply(  # type: ignore[no-untyped-call]
        output, factor, use.weight, product.bias, (product.compute, use, deferred)
    )
    return caught if product.output_shape is None else caught.view(product.output_shape)


class _LinearMap(torch.autograd.Function):
    """A linear map of rows, the gradients of whose weight and bias are deferred."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        product: tuple[Use, DeferredWeights],
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(rows, weight)
        ctx.product = product
        return functional.linear(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        (gradient,) = gradients
        rows, weight = ctx.saved_tensors
        use, deferred = ctx.product
        if gradient is None:
            return None, None, None, None
        if torch.is_grad_enabled():
            return *_differentiable(functional.linear, rows, weight, use.bias, gradient), None
        of_rows = gradient.mm(weight) if ctx.needs_input_grad[0] else None
        if deferred.takes(use, rows, gradient):
            return of_rows, None, None, None
        return of_rows, *use.gradients(rows, gradient), None


class _Catch(torch.autograd.Function):
    """The identity; its backward pass keeps the gradient that determines the weight's gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        output: Tensor,
        factor: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        product: tuple[Compute, Use, DeferredWeights],
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(factor, bias)
        ctx.mark_dirty(output)  # in place, or later changes in place would be forbidden
        ctx.product = product
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        (gradient,) = gradients
        factor, bias = ctx.saved_tensors
        compute, use, deferred = ctx.product
        if gradient is None:
            return None, None, None, None, None
        if torch.is_grad_enabled():
            return None, *_differentiable(compute, factor, use.weight, bias, gradient), None
        if deferred.takes(use, factor, gradient):
            return gradient, None, None, None, None
        return gradient, None, *use.gradients(factor, gradient), None


def _differentiable(
    compute: Compute, factor: Tensor, weight: Tensor, bias: Tensor | None, gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of input, weight and bias with a graph that leads to all of them."""
    operands = (factor, weight, bias)
    wanted = [one for one in operands if one is not None and one.requires_grad]
    with torch.autocast(factor.device.type, gradient.dtype, gradient.dtype is not weight.dtype):
        output = compute(factor, weight, bias)
    found = torch.autograd.grad(output, wanted, gradient, create_graph=True)
    by_operand = dict(zip(map(id, wanted), found, strict=True))
    return tuple(by_operand.get(id(one)) for one in operands)


# What `_ProductMode` does not leave to PyTorch.
_INTERCEPTED = PRODUCTS | {functional.multi_head_attention_forward}
