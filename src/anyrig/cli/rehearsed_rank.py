"""The main module of each rank of `anyrig rehearse`: `rank`, on a virtual node.

``python -m anyrig.cli.rehearsed_rank PLACEMENT [-m] script args…``
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ..rehearsal.placement import Placement
from . import rank


def main() -> NoReturn:
    """Set the environment variables of this rank's virtual node, then run as `rank` does."""
    placement = Placement.parse(sys.argv.pop(1))
    os.environ.update(placement.environment_of(int(os.environ["RANK"])))
    rank.main()


if __name__ == "__main__":
    main()
