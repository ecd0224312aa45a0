"""Default shares on unequal devices: an A100 and two T4s, in other processes."""

from __future__ import annotations

import textwrap
from pathlib import Path

from forked_programs import run_forked

PROGRAM = """
    import anyrig.virtual

    anyrig.virtual.install("A100-80GB+2xT4")

    import torch
    from same_bits import digest
    from torch import nn

    import anyrig

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(), nn.Linear(32, 4))
    seen = []
    net[1].register_forward_pre_hook(lambda layer, args: seen.append(len(args[0])))
    plan = anyrig.Replicas(local_statistics=True)
    model = anyrig.spread(net, plan=plan, loss=nn.MSELoss())
    optimizer = torch.optim.Adam(model.parameters())
    for rows in [*range(2, 11), *[48] * 30]:  # far longer than shares were once measured
        seen.clear()
        model(torch.randn(rows, 8), target=torch.randn(rows, 4)).backward()
        assert sum(seen) == rows and 1 not in seen, (rows, seen)
        optimizer.step(), optimizer.zero_grad()
    shares = anyrig.explain(model).shares
    print(shares.held, shares.split(48), shares.reason)
    print(digest(model.state_dict().values()))
"""


def test_every_run_is_the_same_and_no_device_has_a_single_sample() -> None:
    found = set()
    for _ in range(2):
        finished = run_forked("-c", textwrap.dedent(PROGRAM), cwd=Path(__file__).parents[1])
        assert finished.returncode == 0, finished.stdout + finished.stderr
        found.add(finished.stdout)
    (output,) = found
    assert output.startswith(
        "True (35, 7, 6) by published FLOP/s and memory bandwidth of NVIDIA A100-SXM4-80GB, Tesla "
        "T4\n"
    )
