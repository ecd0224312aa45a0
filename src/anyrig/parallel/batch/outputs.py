"""What the parts of a batch returned, made into what the module returns for the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ...errors import BatchError
from ...transfer.beside import copy_beside
from ...transfer.tree import ATOM_TYPES, Path, format_path
from .call import Call, list_counts
from .cut import join
from .divided_dimension import Answer
from .joining import Joining, are_equal, format_shapes


def join_outputs(values: Sequence[Any], device: torch.device, call: Call) -> Any:
    """Return on `device` what the module returns for the whole batch, from what it returned for
    each part.

    * Tensors are joined along the dimension that has the samples, wherever it is.
    * A floating-point number, a tensor of one or Python's, is a mean over the samples of each part;
      the result is the mean over all. A tensor keeps its shape and is differentiable.
    * Packed sequences become one of all sequences, nested tensors one of all parts.
    * Texts and numbers that are equal are themselves. Other objects come as a list where they
      differ.

    Args:
        values: one for each part that had samples, of one structure.
        device: where the result is to be, with its index.
        call: the call that they came of.

    Raises:
        BatchError: the result would not be that of the whole batch; the message says what to do.
    """
    outputs = _Outputs(device, call)
    return Joining(device, outputs.join_tensors, outputs.join_others).join(tuple(values))


@dataclass
class _Outputs:
    device: torch.device
    call: Call

    def join_tensors(self, tensors: tuple[Tensor, ...], path: Path) -> Tensor:
        first = tensors[0]
        if all(tensor is first for tensor in tensors):  # one part, or no part's own
            return copy_beside(first, self.device)
        answer = self.call.find_samples(tensors, path) if first.dim() else Answer()
        if answer.dim is not None:
            return join(tensors, self.device, answer.dim)
        fractional = first.is_floating_point() or first.is_complex()
        if answer == Answer() and first.numel() == 1 and fractional:
            return self._mean(tensors)
        raise self._refuse(tensors, path, answer)

    def join_others(self, values: tuple[Any, ...], path: Path) -> Any:
        first = values[0]
        if are_equal(values):
            numbers = (first,) if type(first) is int else first
            counts = type(first) is int or isinstance(first, torch.Size)
            if len(values) == 1 or not counts or self.call.is_constant(numbers, path):
                return first
            raise self._refuse_number(values, path)
        if all(type(value) in (int, float, complex) for value in values) and any(
            type(value) is not int for value in values
        ):
            samples = self.call.samples
            return sum(n * value for n, value in zip(samples, values, strict=True)) / sum(samples)
        if any(type(value) in ATOM_TYPES or isinstance(value, torch.Size) for value in values):
            raise self._refuse_number(values, path)
        return list(values)

    def _mean(self, numbers: Sequence[Tensor]) -> Tensor:
        dtype = reduce(torch.promote_types, (number.dtype for number in numbers))
        wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        total = sum(self.call.samples)
        parts = [
            # To the host a copy waits, because it could be read before it is written.
            number.to(self.device, wide, non_blocking=self.device.type != "cpu") * (count / total)
            for number, count in zip(numbers, self.call.samples, strict=True)
        ]
        return torch.stack(parts).sum(0).to(dtype)

    def _refuse_number(self, values: tuple[Any, ...], path: Path) -> BatchError:
        return BatchError(
            f"cannot join {format_path(path)} of what the replicas returned: it differs with the "
            f"part of the batch ({', '.join(map(repr, values))}), and is no mean over samples. "
            "Return a tensor with an entry for each sample, or take the parts as they are: "
            "model.scattered(...)"
        )

    def _refuse(self, tensors: tuple[Tensor, ...], path: Path, answer: Answer) -> BatchError:
        shapes, samples = format_shapes(tensors), list_counts(self.call.samples)
        what = f"cannot join {format_path(path)} of what the replicas returned: "
        if answer.differing:
            return BatchError(
                f"{what}of the parts with {samples} samples it has shapes {shapes}, and only one "
                "dimension may differ, like the samples. Where the module pads sequences to the "
                "longest of its part, give it the length of the whole batch: "
                "pad_packed_sequence(..., total_length=length). Or fill up the parts: "
                "anyrig.parallel.gather(model.scattered(...), device, padding=0.0)"
            )
        if answer.candidates:
            return BatchError(
                f"{what}dimensions {' and '.join(map(str, answer.candidates))} of the shapes "
                f"{shapes} change with the samples ({samples}), so these are blocks of the whole. "
                "Compute what relates samples to each other outside the module; where it is a "
                "length, give sequences the length of the whole batch"
            )
        if tensors[0].numel() == 1:
            return BatchError(
                f"{what}a single {str(tensors[0].dtype).removeprefix('torch.')} from each part is "
                "no mean over samples. Return an entry for each sample, or a floating-point mean; "
                "or take the parts as they are: model.scattered(...)"
            )
        return BatchError(
            f"{what}no dimension of the shapes {shapes} follows the samples of the parts "
            f"({samples}), so it cannot be put together. The batch was divided along dimension "
            f"{self.call.dim}; if its samples are in another, as for nn.LSTM without "
            "batch_first=True, name that: spread(module, dim=1). Otherwise return the samples in "
            f"dimension {self.call.dim}, with tensor.expand() at no cost; or leave it out, or "
            "take the parts as they are: model.scattered(...)"
        )
