"""Operators that multiply an input by a weight, and the gradients of their weights.

::

    output = compute(input, weight, bias)               in the forward pass
    use.gradients(input, output's gradient)             of weight and bias, at any later time
    use.accumulate_gradients(input, output's gradient)  the same, added to ``.grad``

Most of a backward pass's work on parameters is in these products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

Predicate = Callable[[Any], bool]
# Computes an output from input, weight and bias.
Compute = Callable[[Tensor, Tensor, Tensor | None], Tensor]
# Returns two tensors whose product is the weight's gradient, from input and output's gradient.
Factors = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Use(NamedTuple):
    """One use of a weight, and of a bias: how their gradients are computed.

    Attributes:
        weight: the weight.
        bias: the bias if its gradient is wanted, otherwise None.
        weight_gradient: computes the weight's gradient from the input and the output's gradient.
        bias_dims: the dimensions of the output over which the bias's gradient is a sum.
        factors: the tensors whose product is the weight's gradient; None if there are none.
    """

    weight: Tensor
    bias: Tensor | None
    weight_gradient: Callable[[Tensor, Tensor], Tensor]
    bias_dims: tuple[int, ...] = (0,)
    factors: Factors | None = None

    def gradients(self, factor: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of weight and bias, in their dtypes.

        Args:
            factor: the input of the product.
            gradient: the gradient of its output.
        """
        with torch.autocast(factor.device.type, enabled=False):
            of_weight = self.weight_gradient(factor, gradient).to(self.weight.dtype)
            if self.bias is None:
                return of_weight, None
            return of_weight, gradient.sum(self.bias_dims).to(self.bias.dtype)

    def accumulate_gradients(self, factor: Tensor, gradient: Tensor) -> None:
        """Add the gradients of weight and bias to their ``.grad``; see `gradients`.

        A product of matrices is added by the multiplication itself, which saves a tensor of the
        weight's size, and writing and reading it.
        """
        total = self.weight.grad
        if (
            self.factors is None
            or total is None
            or total.dim() != 2
            or not total.dtype == factor.dtype == gradient.dtype
        ):
            of_weight, of_bias = self.gradients(factor, gradient)
            _add_to_grad(self.weight, of_weight)
        else:
            # PyTorch's FlopCounterMode does not count the work of `addmm_`.
            torch.addmm(total, *self.factors(factor, gradient), out=total)
            of_bias = None if self.bias is None else gradient.sum(self.bias_dims)
        if self.bias is not None and of_bias is not None:
            _add_to_grad(self.bias, of_bias)


def _add_to_grad(parameter: Tensor, gradient: Tensor) -> None:
    """Add a gradient to ``parameter.grad``."""
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


def use_of_linear(weight: Tensor, bias: Tensor | None) -> Use:
    """Return the use of a weight, and of a bias, in a linear map of rows."""
    return Use(weight, bias, _multiply_rows, factors=_factors_of_rows)


def _factors_of_rows(rows: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return gradient.mT, rows


def _multiply_rows(rows: Tensor, gradient: Tensor) -> Tensor:
    return gradient.mT @ rows


def _use_of_product(weight: Tensor, bias: Tensor | None, factors: Factors) -> Use:
    """Return the use of a weight whose gradient is the product of `factors`."""

    def multiply(factor: Tensor, gradient: Tensor) -> Tensor:
        left, right = factors(factor, gradient)
        return left @ right

    return Use(weight, bias, multiply, factors=factors)


class Product(NamedTuple):
    """One call of an operator with a weight.

    Attributes:
        input: the other operand.
        bias: added to the product; None without a bias.
        use: the use of the weight, and of the bias.
        compute: computes the output from input, weight and bias.
        output_shape: the shape of the call's output if `compute` returns another.
    """

    input: Tensor
    bias: Tensor | None
    use: Use
    compute: Compute
    output_shape: tuple[int, ...] | None = None


def read_product(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    is_wanted: Predicate,
) -> Product | None:
    """Read the call ``function(*args, **kwargs)`` as a product.

    Args:
        function: what is called.
        args: its positional arguments.
        kwargs: its keyword arguments.
        is_wanted: whether a value is a tensor whose gradient is wanted.

    Returns:
        None if the call is not a product with a wanted weight, or has an uncommon form.
    """
    read = _READERS.get(function)
    return None if read is None else read(is_wanted, *args, **kwargs)


def _read_linear(is_wanted: Predicate, input: Any, weight: Any, bias: Any = None) -> Product | None:  # noqa: A002
    if not (is_wanted(weight) and is_plain(input) and weight.dim() == 2 <= input.dim()):
        return None
    # With a higher-dimensional input, PyTorch may return a view, which _Catch cannot take over.
    return Product(
        input if input.dim() == 2 else input.reshape(-1, input.shape[-1]),
        bias,
        use_of_linear(weight, bias if is_wanted(bias) else None),
        functional.linear,
        None if input.dim() == 2 else (*input.shape[:-1], weight.shape[0]),
    )


def _read_matmul(is_wanted: Predicate, left: Any, right: Any, **others: Any) -> Product | None:
    if others:
        return None
    if is_wanted(right) and is_plain(left):
        use = _use_of_product(right, None, lambda rows, gradient: (rows.mT, gradient))
        if right.dim() == left.dim() == 2 or (
            right.dim() == left.dim() == 3 and right.shape[0] == left.shape[0]
        ):
            return Product(left, None, use, _times_right)
        if right.dim() == 2 < left.dim():
            shape = (*left.shape[:-1], right.shape[1])
            return Product(left.reshape(-1, left.shape[-1]), None, use, _times_right, shape)
    elif is_wanted(left) and is_plain(right) and left.dim() == right.dim() == 2:
        use = _use_of_product(left, None, lambda columns, gradient: (gradient, columns.mT))
        return Product(right, None, use, _times_left)
    return None


def _read_addmm(
    is_wanted: Predicate, bias: Any, left: Any, right: Any, **others: Any
) -> Product | None:
    if others or not (is_wanted(right) and is_plain(left) and isinstance(bias, Tensor)):
        return None
    if bias.dim() != 1 or bias.shape[0] != right.shape[-1]:
        return None
    use = _use_of_product(
        right, bias if is_wanted(bias) else None, lambda rows, gradient: (rows.mT, gradient)
    )
    return Product(left, bias, use, _add_product)


def _read_convolution(
    convolve: Callable[..., Tensor], weight_gradient: Callable[..., Tensor]
) -> Callable[..., Product | None]:
    def read(
        is_wanted: Predicate,
        input: Any,  # noqa: A002
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Product | None:
        if not (is_wanted(weight) and is_plain(input) and input.dim() == weight.dim()):
            return None
        if isinstance(padding, str):
            return None  # "same" pads the two ends differently if the kernel's size is even
        form = (stride, padding, dilation, groups)
        use = Use(
            weight,
            bias if is_wanted(bias) else None,
            lambda pixels, gradient: weight_gradient(pixels, weight.shape, gradient, *form),
            (0, *range(2, input.dim())),
        )
        return Product(
            input, bias, use, lambda pixels, kernel, shift: convolve(pixels, kernel, shift, *form)
        )

    return read


def _times_right(rows: Tensor, weight: Tensor, _: Tensor | None) -> Tensor:
    return torch.matmul(rows, weight)


def _times_left(columns: Tensor, weight: Tensor, _: Tensor | None) -> Tensor:
    return torch.matmul(weight, columns)


def _add_product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    assert bias is not None
    return torch.addmm(bias, rows, weight)


def is_plain(value: Any) -> bool:
    """Return whether a value is an ordinary tensor: dense, real, and not of a subclass."""
    return (
        type(value) in (Tensor, torch.nn.Parameter)
        and value.layout is torch.strided
        and not value.is_nested
        and value.is_floating_point()
    )


# In the methods of `Tensor`, the tensor itself is the first argument.
_READERS: Mapping[Callable[..., Any], Callable[..., Product | None]] = MappingProxyType(
    {
        functional.linear: _read_linear,
        torch.matmul: _read_matmul,
        Tensor.matmul: _read_matmul,  # and the operator @
        torch.mm: _read_matmul,
        Tensor.mm: _read_matmul,
        torch.bmm: _read_matmul,
        Tensor.bmm: _read_matmul,
        torch.addmm: _read_addmm,
        functional.conv1d: _read_convolution(functional.conv1d, conv1d_weight),
        functional.conv2d: _read_convolution(functional.conv2d, conv2d_weight),
        functional.conv3d: _read_convolution(functional.conv3d, conv3d_weight),
    }
)
# The functions that `read_product` knows.
PRODUCTS = frozenset(_READERS)
