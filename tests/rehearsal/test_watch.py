"""`anyrig.rehearsal.watch`, as a notebook shows its report."""

from __future__ import annotations

import html
import re

import pytest
import torch
from torch import nn

import anyrig


@pytest.mark.virtual_only("a rehearsal runs on virtual GPUs")
@pytest.mark.gpus(1)
def test_a_notebook_shows_the_page_of_a_report_in_a_frame() -> None:
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    with anyrig.rehearsal.watch() as report:
        assert report._repr_html_().startswith("<pre>anyrig: ")
        for _ in range(3):
            model(torch.ones(8, 64, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    shown = report._repr_html_()
    frame = re.fullmatch(r'<iframe srcdoc="([^"]*)" style="[^"]*"></iframe>', shown)
    assert frame is not None, shown[:200]
    page = html.unescape(frame[1])
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "typical step" in page
