"""What `anyrig rehearse` starts for each rank: `rank`, with the place of a rank in front.

``python -m anyrig.cli.rehearsed_rank PLACEMENT [-m] script args…``
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ..rehearsal.placement import Placement
from . import rank


def main() -> NoReturn:
    """Tell this process which virtual machine it is on, and go on as a rank."""
    placement = Placement.parse(sys.argv.pop(1))
    os.environ.update(placement.environment_of(int(os.environ["RANK"])))
    rank.main()


if __name__ == "__main__":
    main()
