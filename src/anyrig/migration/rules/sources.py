"""Where PyTorch documents what it changed."""

from __future__ import annotations

_RELEASES = "https://github.com/pytorch/pytorch/releases/tag"
_DOCS = "https://docs.pytorch.org/docs/stable"

V0_3 = f"{_RELEASES}/v0.3.0"
V0_4 = f"{_RELEASES}/v0.4.0"
V1_0 = f"{_RELEASES}/v1.0.0"
V1_1 = f"{_RELEASES}/v1.1.0"
V1_2 = f"{_RELEASES}/v1.2.0"
V1_5 = f"{_RELEASES}/v1.5.0"
V1_7 = f"{_RELEASES}/v1.7.0"
V1_13 = f"{_RELEASES}/v1.13.0"
V2_0 = f"{_RELEASES}/v2.0.0"
V2_1 = f"{_RELEASES}/v2.1.0"
V2_6 = f"{_RELEASES}/v2.6.0"
V2_7 = f"{_RELEASES}/v2.7.0"
GUIDE_0_4 = "https://pytorch.org/blog/pytorch-0_4_0-migration-guide/"
PYTHON_3 = "https://docs.python.org/3/whatsnew/3.0.html"
PYTHON_3_7 = "https://docs.python.org/3/whatsnew/3.7.html"
PYTHON_3_14 = "https://docs.python.org/3/whatsnew/3.14.html"


def thread(number: int) -> str:
    """Return the address of an issue or a pull request of PyTorch."""
    return f"https://github.com/pytorch/pytorch/issues/{number}"


def page(path: str) -> str:
    """Return the address of a page of PyTorch's documentation."""
    return f"{_DOCS}/{path}"
