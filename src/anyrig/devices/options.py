"""``--device`` and ``--disable-cuda`` for a typer program.

::

    from anyrig.devices import DeviceOption, DisableCudaOption, rig_from_options

    def train(device: DeviceOption = None, disable_cuda: DisableCudaOption = False):
        rig = rig_from_options(device, disable_cuda)
"""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from .arguments import DEVICE_HELP, DISABLE_CUDA_HELP

# typer reads these at run time, where Python 3.10 needs Optional, not `str | None`.
DeviceOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--device", metavar="DEVICE", help=DEVICE_HELP, show_default=False),
]
DisableCudaOption = Annotated[bool, typer.Option("--disable-cuda", help=DISABLE_CUDA_HELP)]
