"""The check of one database entry in one variant: each sample on a virtual GPU and the CPU."""

import gc
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from comparison import Mismatch
from outcome import Outcome, describe
from sample import Sample
from variants import Variant


@dataclass
class Entry:
    """A database entry as one variant calls it, with samples of `dtype`."""

    op: Any
    variant: Variant
    dtype: torch.dtype
    device: torch.device

    @property
    def differentiable(self) -> bool:
        if self.variant.form == "out" or not (
            self.dtype.is_floating_point or self.dtype.is_complex
        ):
            return False
        if self.variant.form == "inplace" and not self.op.supports_inplace_autograd:
            return False
        return self.op.supports_autograd and self.op.supports_dtype(self.dtype, "cuda")

    @property
    def has_backward(self) -> bool:
        return self.differentiable and self.dtype in self.op.supported_backward_dtypes("cuda")

    def samples(self) -> Iterable[Any]:
        torch.manual_seed(0)
        samples = self.op.sample_inputs(
            str(self.device), self.dtype, requires_grad=self.has_backward
        )
        for sample in samples:
            if self.variant.form == "inplace" and sample.broadcasts_input:
                continue
            yield sample.noncontiguous() if self.variant.form == "noncontiguous" else sample

    @property
    def kernel_on_gpu(self) -> bool:
        """Whether CUDA has the kernel, by the dtypes that the database lists."""
        return self.dtype in self.op.supported_dtypes("cuda")

    @property
    def kernel_on_cpu(self) -> bool:
        return self.dtype in self.op.supported_dtypes("cpu")


def name_of(entry: Any) -> str:
    """Return the name with its variant, such as ``"linalg.svd"`` or ``"round.decimals_3"``."""
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else entry.name


def check_entry(
    entry: Any, variant: Variant, device: torch.device, most_samples: int | None = None
) -> Outcome:
    """Compare every sample of `entry` on `device` with the CPU."""
    outcome = Outcome(name_of(entry), variant.name)
    started = time.perf_counter()
    dtype = variant.dtype_for(entry)
    if dtype is None:
        outcome.status = "absent"
        return outcome
    bytes_before = torch.cuda.memory_allocated(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _check_samples(Entry(entry, variant, dtype, device), outcome, most_samples)
    left = _bytes_left(device, bytes_before)
    if left > 0 and outcome.status == "passed":
        outcome.fail(f"{left} bytes of the device are left allocated")
    outcome.seconds = round(time.perf_counter() - started, 3)
    return outcome


def _bytes_left(device: torch.device, bytes_before: int) -> int:
    """Return the bytes still allocated on the device after all samples are freed."""
    gc.collect()
    # The device's autograd thread frees the last graph shortly after backward() returns.
    for _ in range(100):
        if torch.cuda.memory_allocated(device) <= bytes_before:
            return 0
        time.sleep(0.01)
    return torch.cuda.memory_allocated(device) - bytes_before


def _check_samples(entry: Entry, outcome: Outcome, most_samples: int | None) -> None:
    try:
        samples = list(islice(entry.samples(), most_samples))
    except Exception as error:
        outcome.fail(f"its samples cannot be made: {describe(error)}")
        return
    for number, sample in enumerate(samples):
        outcome.samples += 1
        try:
            Sample(entry, sample, outcome).check()
        except Mismatch as error:
            outcome.fail(f"sample {number}: {error}")
        except Exception as error:
            outcome.fail(f"sample {number}: {describe(error)}")
    if not entry.kernel_on_gpu and outcome.refused == 0:
        outcome.fail(f"a GPU refuses {entry.dtype}, and the device takes every sample")
