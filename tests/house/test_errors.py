"""One tree of errors, drawn where it is defined, and shown to a person without a traceback."""

import re

import pytest

from anyrig import errors
from anyrig.errors import AnyrigError
from forked_programs import run_anyrig

EVERY = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, AnyrigError) and value is not AnyrigError
]


@pytest.mark.parametrize("error", EVERY, ids=lambda error: error.__name__)
def test_the_drawing_shows_the_error_with_its_built_in_base(error: type[AnyrigError]) -> None:
    if error.__bases__[0] is not AnyrigError:  # drawn under its parent, which has the base
        assert re.search(rf"│   [├└]── {error.__name__} +\w", errors.__doc__)
        return
    built_in = next(base for base in error.__mro__ if base.__module__ == "builtins")
    assert re.search(rf"── {error.__name__} +\({built_in.__name__}\) +\w", errors.__doc__)


def test_the_drawing_shows_no_others() -> None:
    drawn = re.findall(r"── (\w+)", errors.__doc__)
    assert sorted(drawn) == sorted(error.__name__ for error in EVERY)


def test_a_command_shows_one_message_and_exits_with_the_error_s_code() -> None:
    done = run_anyrig("run", "--device", "gpu0", __file__, timeout=60)
    assert done.returncode == errors.DeviceTextError.exit_code == 2
    assert done.stderr.startswith("anyrig: error: ")
    assert "Traceback" not in done.stderr
