"""The reason that `explain` gives is the one that decided."""

from __future__ import annotations

import pytest
import torch

import anyrig

pytestmark = pytest.mark.gpus(2)


@pytest.mark.parametrize("lead", ["cuda:0", "cuda:1"])
def test_a_module_that_lies_on_a_device_makes_it_the_lead(lead: str) -> None:
    detected = anyrig.Rig.detect()
    layout = anyrig.explain(anyrig.spread(torch.nn.Linear(2, 2, device=lead)))
    assert layout.lead == torch.device(lead)
    if layout.lead == detected.lead.torch_device:
        assert layout.reason == detected.reason
    else:
        assert layout.reason == f"the lead is {lead}, which has the module; {detected.reason}"
