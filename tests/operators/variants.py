"""The ways in which every entry of PyTorch's operator database is called."""

from dataclasses import dataclass
from typing import Any, Literal

import torch

Form = Literal["function", "noncontiguous", "inplace", "out"]

# An entry without float32 uses the first of these dtypes that it supports.
INSTEAD_OF_FLOAT32 = (torch.int64, torch.complex64, torch.float8_e4m3fn)


@dataclass(frozen=True)
class Variant:
    """One column of the table.

    Attributes:
        dtype: of the sample inputs.
        form: plain call, plain call with non-contiguous inputs, in place, or with ``out=``.
    """

    dtype: torch.dtype
    form: Form = "function"

    @property
    def name(self) -> str:
        """The variant's name, such as ``"float32"`` or ``"float32-out"``."""
        dtype = str(self.dtype).removeprefix("torch.")
        return dtype if self.form == "function" else f"{dtype}-{self.form}"

    def dtype_for(self, entry: Any) -> torch.dtype | None:
        """Return the dtype of `entry`'s samples, or None if the variant does not apply to it.

        The variant applies if CUDA supports the dtype, whether or not the CPU does.
        """
        supported = entry.supported_dtypes("cuda") | entry.supported_dtypes("cpu")
        if self.form == "inplace" and entry.get_inplace() is None:
            return None
        if self.form == "out" and not entry.supports_out:
            return None
        if self.dtype in supported:
            return self.dtype
        if self.dtype == torch.float32:
            return next((dtype for dtype in INSTEAD_OF_FLOAT32 if dtype in supported), None)
        return None


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant(torch.float32),
        Variant(torch.float32, "noncontiguous"),
        Variant(torch.float32, "inplace"),
        Variant(torch.float32, "out"),
        Variant(torch.bfloat16),
        Variant(torch.float16),
        Variant(torch.float64),
        Variant(torch.int64),
        Variant(torch.bool),
        Variant(torch.complex64),
    )
}
