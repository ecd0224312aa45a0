"""`fit_value`, with which a script names a value that `anyrig fit` may vary."""

from __future__ import annotations

import json
import os

from ..errors import PlanningError

# The names and values of a rehearsal, as a JSON object.
VARIABLE = "ANYRIG_FIT_VALUES"


def fit_value(name: str, default: int) -> int:
    """Return the value that ``anyrig fit --vary name=1..512`` tries; otherwise `default`.

    ::

        loader = DataLoader(dataset, batch_size=anyrig.fit_value("batch", 32))

    Args:
        name: the name of the value.
        default: the value of any other run.

    Raises:
        PlanningError: the environment variable ``ANYRIG_FIT_VALUES`` is not a JSON object.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return default
    try:
        value = json.loads(text).get(name, default)
    except (AttributeError, ValueError):
        raise PlanningError(
            f"the environment variable {VARIABLE} is {text[:60]!r}, and must be a JSON object such "
            'as {"batch": 32}; unset it, as anyrig fit sets it for each rehearsal'
        ) from None
    return value if type(value) is int else default
