"""An exception of a worker, as the process that it computes for raises it.

::

    worker     exception and what led to it ─▶ SentError: exceptions, places in the code ─┐
    parent     the same, with tracebacks that have a frame for each place  ◀──────────────┘

So the traceback leads from the call of the model to the line of the user's code that failed. The
parent reads the lines: it alone has those of a notebook's cells.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, NamedTuple

from .link import survives

_FOLDER = str(Path(__file__).parent)
_NO_COLUMNS = 0, 0
_BYTES_OF_INSTRUCTION = 2


class _Place(NamedTuple):
    """A line of a traceback."""

    file: str
    function: str
    line: int
    end_line: int
    columns: tuple[int, int]


class _Raised(NamedTuple):
    """An exception of a chain, and whether the exception before it was raised from it."""

    error: BaseException
    places: Sequence[_Place]
    is_cause: bool
    hides_context: bool


@dataclass(frozen=True)
class SentError:
    """An exception and what led to it, in this order."""

    chain: Sequence[_Raised]

    @classmethod
    def of(cls, error: BaseException) -> SentError:
        """Return an exception of this process, for another one."""
        return cls([*_chain_of(error)])

    def restored(self) -> BaseException:
        """Return the exception with its traceback."""
        restored, following = self.chain[0].error, iter(self.chain[1:])
        for error, places, _, hides_context in self.chain:
            error.__traceback__ = _traceback_of(places)
            before = next(following, None)
            if before is not None and before.is_cause:
                error.__cause__ = before.error
            elif before is not None:
                error.__context__ = before.error
            error.__suppress_context__ = hides_context
        return restored


def _chain_of(error: BaseException) -> Iterator[_Raised]:
    following: BaseException | None = error
    seen: set[int] = set()
    is_cause = False
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        cause, context = following.__cause__, following.__context__
        hides_context, places = following.__suppress_context__, _places_of(following.__traceback__)
        alone = following.with_traceback(None)
        alone.__cause__ = alone.__context__ = None
        if not survives(alone):
            alone = RuntimeError(f"{type(following).__name__}: {following}")
        yield _Raised(alone, places, is_cause, hides_context)
        following, is_cause = (context, False) if cause is None else (cause, True)


def _places_of(traceback: TracebackType | None) -> list[_Place]:
    """Return the places of a traceback, without the frames of the worker that it begins with."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_FOLDER):
        traceback = traceback.tb_next
    places = []
    while traceback is not None:
        code, line = traceback.tb_frame.f_code, traceback.tb_lineno
        range_of_code = _range_of(code, traceback.tb_lasti, line)
        places.append(_Place(code.co_filename, code.co_name, line, *range_of_code))
        traceback = traceback.tb_next
    return places


def _range_of(code: CodeType, instruction: int, line: int) -> tuple[int, tuple[int, int]]:
    """Return the last line and the columns of an instruction, which Python 3.10 does not know."""
    positions: Any = getattr(code, "co_positions", tuple)()
    number = instruction // _BYTES_OF_INSTRUCTION
    position: Any = next(islice(positions, number, None), [None] * 4)
    first, last, begin, end = position
    if first != line or None in (last, begin, end):
        return line, _NO_COLUMNS
    return last, (begin, end)


def _traceback_of(places: Sequence[_Place]) -> TracebackType | None:
    found: TracebackType | None = None
    for place in reversed(places):
        found = _traceback_at(place, found)
    return found


def _traceback_at(place: _Place, following: TracebackType | None) -> TracebackType:
    """Return the entry of a traceback, whose frame belongs to a statement that raises there."""
    at = {
        "lineno": place.line,
        "end_lineno": place.end_line,
        "col_offset": place.columns[0],
        "end_col_offset": place.columns[1],
    }
    statement = ast.Raise(ast.Name("Exception", ast.Load(), **at), None, **at)
    code = compile(ast.Module([statement], []), place.file, "exec").replace(co_name=place.function)
    raised: TracebackType | None = None
    try:
        exec(code, {})  # noqa: S102 - the statement above
    except Exception as error:
        raised = error.__traceback__
    entry = raised and raised.tb_next  # this function's comes first
    assert entry is not None
    return TracebackType(following, entry.tb_frame, entry.tb_lasti, place.line)
