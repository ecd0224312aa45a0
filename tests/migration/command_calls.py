"""Calls of anyrig's commands in this process."""

from __future__ import annotations

import typer.testing

from anyrig.cli.app import app


def call(*words: str) -> tuple[int, str]:
    """Return a command's exit status, and what it has printed; raise what it has raised."""
    done = typer.testing.CliRunner().invoke(app, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout
