"""`anyrig migrate`: rewrite a program for the PyTorch and the Python of today."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated

import typer

from .check import report_trouble, show_diff, status_of


def migrate(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Files and folders to rewrite.")
    ],
    diff: Annotated[
        bool, typer.Option("--diff", help="Show the changes as a diff, and write nothing.")
    ] = False,
    safe: Annotated[
        bool,
        typer.Option("--safe", help="Only fixes that cannot change what the program computes."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was fixed and what is left as JSON.")
    ] = False,
) -> None:
    """Rewrite old programs, from Python 2 and PyTorch 0.2 on, for current versions.

    A file that would not parse afterwards is left unchanged, and reported. The exit status is 0 if
    nothing is left to do by hand, 1 if something is, 2 if a file was left out.
    """
    from ..migration.files import find_files
    from ..migration.project import rewrite_files
    from ..migration.rules.every import RULES
    from ..units import format_count
    from .finding_formats import OutputFormat, format_reports, format_summary

    rules = tuple(rule for rule in RULES if rule.is_about_versions)
    gc.disable()  # trees are large, and the process ends soon
    files = find_files(paths)
    reports = list(rewrite_files(files, rules, allow_unsafe=not safe, write=not diff, within=paths))
    report_trouble(reports)
    if diff:
        raise typer.Exit(show_diff(reports))
    if as_json:
        typer.echo(format_reports(reports, rules, OutputFormat.JSON))
        raise typer.Exit(status_of(reports))
    for report in reports:
        if report.rewriting is not None and report.rewriting.is_changed:
            fixed = format_count(report.rewriting.fixed, "finding")
            typer.echo(f"rewrote {report.path}: fixed {fixed}")
    text = format_reports(reports, rules, OutputFormat.TEXT)
    if text:
        typer.echo(f"left to do by hand:\n{text}")
    typer.echo(format_summary(reports))
    raise typer.Exit(status_of(reports))
