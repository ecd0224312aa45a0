"""Invalid indices and probabilities: CUDA's exception class, and the kernel's message on
standard error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from anyrig.virtual import installation

DEVICE = "cuda:1"


def outside(*values: int) -> Tensor:
    return torch.tensor(values or (9,), device=DEVICE)


ASSERTS: dict[str, Callable[[Tensor], object]] = {
    "indexing": lambda x: x[outside()],
    "writing": lambda x: x.index_put_((outside(),), x[0] * 2),
    "an embedding": lambda x: functional.embedding(outside(), x),
    "a loss": lambda x: functional.cross_entropy(x, outside(0, 9, 1)),
    "a selection": lambda x: x.index_select(0, outside()),
    "gathering": lambda x: x.gather(0, outside()[None]),
    "scattering": lambda x: x.scatter(0, outside()[None], x),
    "taking": lambda x: x.take(outside() * 9),
    "a bag of embeddings": lambda x: functional.embedding_bag(outside()[None], x),
    "a loss of margins": lambda x: functional.multi_margin_loss(x, outside(0, 9, 1)),
    "unpooling": lambda x: functional.max_unpool2d(x[None, None], outside().expand(1, 1, 3, 3), 1),
    "a source too short": lambda x: x.masked_scatter(x > 0, x[0]),
    "repeating": lambda x: x.repeat_interleave(outside(1, -1, 1), 0, output_size=1),
    "a loss of chances": lambda x: functional.binary_cross_entropy(x * 2, x),
    "coins": lambda x: torch.bernoulli(x * 2),
    "choosing once": lambda x: torch.multinomial(-x, 1),
    "choosing often": lambda x: torch.multinomial(-x, 5, replacement=True),
    "asserting": lambda x: torch._assert_async(x[0, 0] > 1),
}


@pytest.mark.parametrize("case", ASSERTS)
def test_an_index_outside_stops_the_device(case: str, capfd: pytest.CaptureFixture[str]) -> None:
    if installation() is None:  # a real GPU would be unusable for the other tests
        subprocess.run([sys.executable, __file__, case], check=True)
        assert "Assertion `" in capfd.readouterr().err
        return
    x = torch.ones(3, 3, device=DEVICE)
    with pytest.raises(torch.AcceleratorError, match="device-side assert triggered") as raised:
        ASSERTS[case](x)
    assert raised.value.error_code == 710
    assert f"anyrig: device-side assert on {DEVICE} in aten::" in capfd.readouterr().err


def stop_the_device(case: str) -> int:
    """Return the code of the error that a real GPU raises for a case."""
    try:
        ASSERTS[case](torch.ones(3, 3, device=DEVICE))
        torch.cuda.synchronize()
    except torch.AcceleratorError as error:
        print(error)
        return int(error.error_code)
    return 0


def test_errors_found_on_the_host_stay_index_errors() -> None:
    x = torch.ones(3, 3, device=DEVICE)
    with pytest.raises(IndexError, match="out of bounds"):
        x[9]
    with pytest.raises(IndexError, match="for dimension with size 0"):
        x[:, :0][:, [0, 1]]
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.sum(5)
    with pytest.raises(RuntimeError, match="repeats can not be negative"):
        x.repeat_interleave(outside(1, -1, 1), 0)  # on the host, which needs their sum
    with pytest.raises(IndexError, match="out of bounds"):
        x.cpu()[outside().cpu()]


if __name__ == "__main__":
    DEVICE = "cuda:0"
    sys.exit(stop_the_device(sys.argv[1]) != 710)
