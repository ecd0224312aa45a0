"""The private names of PyTorch that anyrig uses, room by room, and what breaks without each.

`rooms` has the only lists of them; a test finds every use in the package and fails if the list of
its room does not have the name. Names are checked only where that can matter: `refuse_missing` for
a PyTorch that is newer than the tested versions, at the entry of each room, and `anyrig doctor` for
all rooms at once.
"""

from .check import MissingNames, describe_missing, find_missing, missing_in_room, refuse_missing
from .name import Needs, PrivateName
from .rooms import ROOMS
from .versions import NEWEST, OLDEST, as_text, is_newer_than_tested, major_and_minor, range_for_pip

__all__ = [
    "NEWEST",
    "OLDEST",
    "ROOMS",
    "MissingNames",
    "Needs",
    "PrivateName",
    "as_text",
    "describe_missing",
    "find_missing",
    "is_newer_than_tested",
    "major_and_minor",
    "missing_in_room",
    "range_for_pip",
    "refuse_missing",
]
