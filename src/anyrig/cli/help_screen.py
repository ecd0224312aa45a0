"""The help of a command on one screen: its first flags explained, the others named.

`--help-all` explains all flags. Every help ends with the page of the documentation.
"""

from __future__ import annotations

import copy
from typing import Any

import typer.core

from .flag_errors import name_nearest_flag

# The flags that `--help` explains, of each command with more flags than fit a screen.
FIRST_FLAGS = {
    "doctor": ("--device", "--nproc-per-node", "--nnodes", "--rdzv-endpoint", "--timeout"),
    "run": (
        *("--device", "--nproc-per-node", "--nnodes", "--rdzv-endpoint", "--max-restarts"),
        *("--log-dir", "--module"),
    ),
    "plan": ("--rig", "--by", "--tries", "--verify", "--as"),
    "rehearse": ("--rig", "--ranks", "--steps", "--report", "--remedies"),
    "rehearse compare": ("--rig", "--nproc-per-device", "--steps", "--prices", "--json"),
    "rehearse fail": ("--rig", "--fault", "--steps", "--max-restarts", "--report"),
    "verify": ("--rig", "--steps", "--single-arguments", "--nproc-per-device", "--module"),
}

# The page about each command, in the folder of the documentation.
_PAGES = {
    "anyrig": "README.md",
    "check": "docs/check.md",
    "checkpoint": "docs/checkpoints.md",
    "devices": "docs/devices.md",
    "doctor": "docs/processes.md",
    "fit": "docs/fit.md",
    "migrate": "docs/check.md",
    "plan": "docs/plan.md",
    "rehearse": "docs/rehearsal.md",
    "rehearse compare": "docs/rehearsal.md",
    "rehearse fail": "docs/rehearsal.md",
    "run": "docs/processes.md",
    "verify": "docs/verify.md",
    "virtual": "docs/virtual_building.md",
}

HELP_NAMES = ["-h", "--help"]
ALL_FLAGS = "--help-all"
_SHOWS_ALL = "anyrig.cli.help_screen"  # the key in a context's `meta`


class Command(typer.core.TyperCommand):
    """A command whose help fits a screen, and whose errors name the nearest flag."""

    def parse_args(self, context: Any, words: list[str]) -> list[str]:
        """Read the options; note which help is wanted."""
        if self.name in FIRST_FLAGS:
            context.help_option_names = [*HELP_NAMES, ALL_FLAGS]
        context.meta[_SHOWS_ALL] = ALL_FLAGS in words
        with name_nearest_flag(context):
            return super().parse_args(context, words)

    def format_help(self, context: Any, formatter: Any) -> None:
        """Write the help that fits a screen, or all of it."""
        shown = copy.copy(self)
        shown.epilog = f"More about it: {page_of(context)}"
        if self.name in FIRST_FLAGS and not context.meta.get(_SHOWS_ALL):
            first, others = self._divide_flags(FIRST_FLAGS[self.name])
            shown.params = first
            shown.help = (self.help or "").split("\n\n")[0]
            shown.epilog = (
                f"{ALL_FLAGS} explains these flags too: {', '.join(others)}.\n\n{shown.epilog}"
            )
        super(Command, shown).format_help(context, formatter)

    def _divide_flags(self, names: tuple[str, ...]) -> tuple[list[Any], list[str]]:
        """Return the parameters for the help in one panel, and the names of the other flags."""
        first, others = [], []
        for parameter in self.params:
            if parameter.param_type_name == "argument" or parameter.opts[0] in names:
                parameter = copy.copy(parameter)
                parameter.rich_help_panel = None  # type: ignore[attr-defined]
                first.append(parameter)
            elif not getattr(parameter, "hidden", False):
                others.append("/".join(parameter.opts))
        return first, others


def page_of(context: Any) -> str:
    """Return the page of the documentation about the command of `context`."""
    names = []
    while context is not None:
        names.append(context.info_name)
        context = context.parent
    return next((_PAGES[name] for name in names if name in _PAGES), _PAGES["anyrig"])
