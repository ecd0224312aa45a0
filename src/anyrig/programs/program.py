"""`Program`, which runs a Python script or module in this process like the interpreter."""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import io
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, Protocol

from ..errors import ReportError


class Marker(Protocol):
    """Marks a function of a script."""

    def names(self) -> dict[str, Any]:
        """Return what the code that `compile` returns uses."""

    def compile(self, source: bytes, path: str) -> CodeType:
        """Return the code of a script, with the function marked."""


# The exit status that a shell reports after Ctrl-C: 128 plus the number of SIGINT.
INTERRUPTED = 130


@dataclass(frozen=True)
class Program:
    """A script or a module, and its arguments.

    Attributes:
        name: the path of a script (or of a folder or zip file with a ``__main__.py``), as after
            ``python``; or the name of a module, as after ``python -m``.
        arguments: the rest of ``sys.argv``.
        is_module: whether `name` is the name of a module.
    """

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    def run(
        self,
        explain: Callable[[BaseException], str | None] | None = None,
        marker: Marker | None = None,
    ) -> int:
        """Run the program as ``__main__`` and return its exit status.

        ``sys.argv``, ``sys.path[0]`` and ``sys.modules["__main__"]`` are set for the program and
        not restored, because threads and exit handlers may outlive this call. An uncaught exception
        is printed as the interpreter prints it, without frames of anyrig, and the exit status is 1.

        Args:
            explain: a function that is called with an uncaught exception before it is printed. The
                text that it returns is printed below the traceback.
            marker: marks a function of a script. Check it before, with `check_marker`.
        """
        try:
            main, code = self._enter(marker)
            exec(code, main.__dict__)  # noqa: S102 - runs the user's program
            return 0
        except BaseException as error:
            ended_by = error.with_traceback(_own_frames(error.__traceback__))
        # Outside the handler, so that an error in the program's `sys.excepthook` has no context.
        explanation = None if explain is None else explain(ended_by)
        status = _status_of(ended_by)
        if explanation is not None:
            sys.stderr.write(f"{explanation}\n")
        return status

    def check_marker(self, marker: Marker) -> None:
        """Check that the program is a script with the function that `marker` names.

        Raises:
            ReportError: it is not. A script that cannot be read or parsed raises nothing here.
        """
        if self.is_module or not Path(self.name).is_file():
            raise ReportError(
                f"{self.name} is not a script, and --step-marker marks a function of a script; "
                "name the file"
            )
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            marker.compile(Path(self.name).read_bytes(), self.name)

    def _enter(self, marker: Marker | None) -> tuple[ModuleType, CodeType]:
        """Set up `sys` for the program; return the module ``__main__`` and its code."""
        sys.argv = [self.name, *self.arguments]
        main = ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        if self.is_module:
            _set_first_path(str(Path.cwd()))
            sys.argv[0] = "-m"
            spec = _find_module(self.name)
            sys.argv[0] = str(spec.origin)
        elif spec_in_folder := PathFinder.find_spec("__main__", [_absolute(self.name)]):
            _set_first_path(_absolute(self.name))
            spec = spec_in_folder
        else:
            _set_first_path(str(Path(self.name).resolve().parent))
            return _enter_script(main, _absolute(self.name), marker)
        sys.modules["__main__"] = main
        main.__spec__, main.__loader__, main.__package__ = spec, spec.loader, spec.parent
        main.__dict__.update(__file__=spec.origin, __cached__=spec.cached)
        return main, _code_of(spec)


def _enter_script(
    main: ModuleType, path: str, marker: Marker | None
) -> tuple[ModuleType, CodeType]:
    sys.modules["__main__"] = main
    main.__loader__ = SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __cached__=None)
    with io.open_code(path) as file:
        if marker is not None:
            main.__dict__.update(marker.names())
            return main, marker.compile(file.read(), path)
        return main, compile(file.read(), path, "exec", dont_inherit=True)


def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - the interpreter does not resolve links either


def _find_module(name: str) -> ModuleSpec:
    """Return the spec of the module `name`, or of ``__main__`` if `name` is a package."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        # Handle only a missing module `name` or parent of it. An import that fails inside an
        # existing parent is the program's error.
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        spec = None
    if spec is None or spec.origin is None:
        sys.exit(f"{sys.executable}: No module named {name}, or it cannot be executed")
    return spec


def _code_of(spec: ModuleSpec) -> CodeType:
    code = getattr(spec.loader, "get_code", lambda _: None)(spec.name)
    if code is None:
        sys.exit(f"{sys.executable}: No code object available for {spec.name}")
    assert isinstance(code, CodeType)
    return code


def _set_first_path(folder: str) -> None:
    # With -P or PYTHONSAFEPATH (Python 3.11 and later), the interpreter adds no such entry.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0:1] = [folder]


def _own_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return `frames` without the leading frames of this file."""
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return frames


def _status_of(error: BaseException) -> int:
    """Print `error` as the interpreter does and return the program's exit status."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")
        return 1
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception as broken:
        sys.stderr.write("Error in sys.excepthook:\n")
        traceback.print_exception(type(broken), broken, _own_frames(broken.__traceback__))
        sys.stderr.write("\nOriginal exception was:\n")
        traceback.print_exception(type(error), error, error.__traceback__)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
