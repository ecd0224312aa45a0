"""Joining the outputs of the parts of a batch into the output for the whole batch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ...errors import BatchError
from ...transfer.beside import copy_beside, copy_in_order
from ...transfer.tree import ATOM_TYPES, Path, format_path
from .call import Call, list_counts
from .cut import join
from .divided_dimension import Answer
from .gather import Joining, are_equal, format_shapes


def join_outputs(values: Sequence[Any], device: torch.device, call: Call) -> Any:
    """Return on `device` the module's output for the whole batch, from its outputs for the parts.

    * Tensors are joined along the dimension that has the samples, whichever it is.
    * A tensor with one element, or a Python float, is a mean over the samples of its part; the
      result is the mean over all samples. A tensor keeps its shape and is differentiable.
    * Packed sequences are joined into one of all sequences, nested tensors into one of all parts.
    * A list with an entry for each sample is the list of all entries.
    * Objects with a notion of samples of their own, such as a TensorDict, are joined by it.
    * Strings and integers must be equal in all parts. Other objects that differ become a list.

    Raise BatchError if the result would not be that of the whole batch.
    """
    outputs = _Outputs(device, call)
    joining = Joining(
        device, outputs.join_tensors, outputs.join_others, call.dim, tuple(call.samples), call.grows
    )
    return joining.join(tuple(values))


@dataclass
class _Outputs:
    device: torch.device
    call: Call

    def join_tensors(self, tensors: tuple[Tensor, ...], path: Path) -> Tensor:
        first = tensors[0]
        if all(tensor is first for tensor in tensors):  # one part, or all returned one tensor
            return copy_beside(first, self.device)
        answer = self.call.find_samples(tensors, path) if first.dim() else Answer()
        if answer.dim is not None:
            return join(tensors, self.device, answer.dim)
        fractional = first.is_floating_point() or first.is_complex()
        if answer == Answer() and first.numel() == 1 and fractional:
            return self._average(tensors)
        raise self._refuse(tensors, path, answer)

    def join_others(self, values: tuple[Any, ...], path: Path) -> Any:
        first = values[0]
        if len(values) > 1 and _is_from_numpy(first):
            return self._join_arrays(values, path)
        if are_equal(values):
            numbers = (first,) if type(first) is int else first
            may_count = type(first) is int or isinstance(first, torch.Size)
            if len(values) == 1 or not may_count or self.call.is_constant(numbers, path):
                return first
            raise _refuse_numbers(values, path)
        types = {type(value) for value in values}
        if types <= {int, float, complex} and types != {int}:
            samples = self.call.samples
            return sum(n * value for n, value in zip(samples, values, strict=True)) / sum(samples)
        if types == {torch.device}:
            return self.device
        if types & ATOM_TYPES or torch.Size in types:
            raise _refuse_numbers(values, path)
        return list(values)

    def _join_arrays(self, arrays: tuple[Any, ...], path: Path) -> Any:
        """Join arrays or scalars of NumPy as tensors are joined, but on the host."""
        try:
            tensors = tuple(torch.as_tensor(array, device="cpu") for array in arrays)
        except TypeError:  # of strings or objects
            return list(arrays)
        joined = replace(self, device=torch.device("cpu")).join_tensors(tensors, path)
        return joined.numpy() if tensors[0].dim() else joined.numpy()[()]

    def _average(self, numbers: Sequence[Tensor]) -> Tensor:
        dtype = reduce(torch.promote_types, (number.dtype for number in numbers))
        wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        total = sum(self.call.samples)
        parts = [
            copy_in_order(number, self.device).to(wide) * (count / total)
            for number, count in zip(numbers, self.call.samples, strict=True)
        ]
        return torch.stack(parts).sum(0).to(dtype)

    def _refuse(self, tensors: tuple[Tensor, ...], path: Path, answer: Answer) -> BatchError:
        shapes, samples = format_shapes(tensors), list_counts(self.call.samples)
        counts = tuple(self.call.samples)
        blocks = answer.candidates or tuple(
            i for i in answer.differing if tuple(tensor.size(i) for tensor in tensors) == counts
        )
        if answer.differing and not blocks:
            packed = "pad_packed_sequence(..., total_length=length)"
            how = f": {packed}" if self.call.packs() else ", as an argument for example"
            reason = (
                f"for parts with {samples} samples it has the shapes {shapes}, and only the "
                "dimension of the samples may differ. If the module pads samples to the longest "
                f"of its part, give it the length of the whole batch{how}. Or fill up the parts: "
                "anyrig.parallel.gather(model.scattered(...), device, padding=0.0)"
            )
        elif blocks:
            reason = (
                f"dimensions {' and '.join(map(str, blocks))} of the shapes {shapes} "
                f"change with the samples ({samples}), so each part has one block of the whole. "
                "Compute what relates samples to each other outside the module; if one dimension "
                "is a length, give sequences the length of the whole batch"
            )
        elif tensors[0].numel() == 1:
            reason = (
                f"a single {str(tensors[0].dtype).removeprefix('torch.')} from each part is not a "
                "mean over samples. Return an entry for each sample, or a floating-point mean; or "
                "take the parts as they are: model.scattered(...)"
            )
        else:
            reason = (
                f"no dimension of the shapes {shapes} follows the parts' samples ({samples}). The "
                f"batch was divided along dimension {self.call.dim}; if its samples are in "
                "another, as for nn.LSTM without batch_first=True, divide along it: spread(module, "
                f"dim=1). Otherwise return the samples in dimension {self.call.dim}, with "
                "tensor.expand() at no cost; or do not return it, or take the parts as they are: "
                "model.scattered(...)"
            )
        return _refusal(path, reason)


def _is_from_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def _refuse_numbers(values: tuple[Any, ...], path: Path) -> BatchError:
    return _refusal(
        path,
        f"it differs between the parts of the batch ({', '.join(map(repr, values))}), and is not "
        "a mean over samples. Return a tensor with an entry for each sample, or take the parts as "
        "they are: model.scattered(...)",
    )


def _refusal(path: Path, reason: str) -> BatchError:
    return BatchError(f"cannot join {format_path(path)} of what the replicas returned: {reason}")
