from __future__ import annotations

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpus(count): needs so many GPUs, real or virtual")


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("gpus")
    if marker is None:
        return
    wanted, there = marker.args[0], torch.accelerator.device_count()
    if there < wanted:
        pytest.skip(f"needs {wanted} GPUs, real or virtual; PyTorch sees {there}")
