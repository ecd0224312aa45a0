"""What `launch` starts for each rank: ``python -m anyrig.parallel.ranks.call FILE``."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from .ending import end_process
from .places import write_place_when_stopped

_RESULT = "result.pickle"


@dataclass(frozen=True)
class Call:
    """A call to be made in another process.

    Attributes:
        path: ``sys.path`` of the process that sends it, so that imports find the same there.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    path: tuple[str, ...]


def read_result(folder: Path) -> Any:
    """Return what rank 0 returned, if it ran on this node; None otherwise.

    It was written by a child of this process, so it is loaded as any object that comes back from
    a process of one's own.
    """
    file = folder / _RESULT
    return pickle.loads(file.read_bytes()) if file.is_file() else None  # noqa: S301


def main() -> NoReturn:
    """Make the call in the file that the first argument names; end with 1 if it raises."""
    write_place_when_stopped()
    file = Path(sys.argv[1])
    try:
        import cloudpickle

        call: Call = pickle.loads(file.read_bytes())  # noqa: S301 - written by the parent
        sys.path[:] = call.path
        result = call.function(*call.args, **call.kwargs)
        if os.environ["RANK"] == "0":
            unfinished = file.with_name(f"{_RESULT}.unfinished")
            unfinished.write_bytes(cloudpickle.dumps(result))
            unfinished.replace(file.with_name(_RESULT))
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    end_process(status)


if __name__ == "__main__":
    main()
