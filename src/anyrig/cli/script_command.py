"""How a command line is divided: `anyrig rehearse compare [OPTIONS] SCRIPT [ARGS]...`."""

from __future__ import annotations

from typing import Any

import typer.core

from .help_screen import Command, page_of


class Commands(typer.core.TyperGroup):
    """Commands whose names may have two words: `rehearse`, and `rehearse compare`."""

    def resolve_command(self, context: Any, words: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that the first words name, its name, and the other words."""
        name = " ".join(words[:2])
        if name in self.commands:
            return name, self.commands[name], words[2:]
        return super().resolve_command(context, words)

    def format_help(self, context: Any, formatter: Any) -> None:
        """Write the help, which ends with the page of the documentation."""
        self.epilog = f"More about it: {page_of(context)}"
        super().format_help(context, formatter)


class ScriptCommand(Command):
    """A command that passes everything after the script's name to the script."""

    def collect_usage_pieces(self, _: object) -> list[str]:
        """Return the words of the usage line, with the script's arguments."""
        return ["[OPTIONS]", "SCRIPT", "[ARGS]..."]

    def parse_args(self, context: Any, words: list[str]) -> list[str]:
        """Read the options; name the command that an unknown option is probably meant to be."""
        try:
            return super().parse_args(context, words)
        except Exception as error:  # no public name of typer's has the class of this error
            option = getattr(error, "option_name", None)
            name = f"{context.info_name} {str(option).lstrip('-')}"
            if context.parent is not None and name in context.parent.command.commands:
                error.message = f"No such option: {option}. Did you mean anyrig {name}?"  # type: ignore[attr-defined]
            raise
