"""Memory taken on the current GPU, and the segments that the GPU has."""

from __future__ import annotations

from typing import Any

import torch


def take(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def own_segments() -> list[dict[str, Any]]:
    segments = torch.cuda.memory._snapshot()["segments"]
    return [segment for segment in segments if segment["device"] == torch.cuda.current_device()]
