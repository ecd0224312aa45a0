"""`anyrig check`: find what a program does wrong with devices, without running it."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..migration.project import FileReport
    from ..migration.settings import Settings
    from .finding_formats import OutputFormat

_PATHS = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[PATH]...", help="Files and folders to check; by default this folder."),
]


def check(
    paths: _PATHS = None,
    select: Annotated[
        list[str] | None,
        typer.Option("--select", metavar="CODES", help="Only these rules: ARC1,ARC203, or ALL."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="CODES", help="All rules but these: ARC302,ARC2."),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Rewrite the files with fixes that are safe.")
    ] = False,
    unsafe_fixes: Annotated[
        bool,
        typer.Option(
            "--unsafe-fixes",
            help="Also with fixes that may change what a program computes.",
        ),
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Show what --fix would change, and write nothing.")
    ] = False,
    output_format: Annotated[
        str,
        typer.Option(
            "--output-format",
            metavar="FORMAT",
            help="How to print the findings: text, json, sarif or github.",
        ),
    ] = "text",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the findings as one JSON object.")
    ] = False,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain", metavar="CODE", help="Print the page of a rule; with all, list them all."
        ),
    ] = None,
) -> None:
    """Find device mistakes, and what works differently in today's PyTorch. This runs no code.

    The exit status is 0 without findings, 1 with some, 2 if a file or an option is wrong.
    """
    from ..migration.files import find_files
    from ..migration.project import check_files, rewrite_files
    from ..migration.selection import select_rules
    from .finding_formats import OutputFormat, format_reports, format_summary

    if explain is not None:
        _explain(explain)
        return
    style = OutputFormat.JSON if as_json else _style(output_format)
    chosen = list(paths or [Path()])
    settings = _settings(chosen)
    selected, ignored = _words("--select", select), _words("--ignore", ignore)
    if selected:
        rules = select_rules(selected, ignored)
    else:
        rules = select_rules(settings.select, [*settings.ignore, *ignored])
    files = find_files(chosen, settings.exclude)
    gc.disable()  # trees are large, and the process ends soon
    if fix or diff:
        reports = list(
            rewrite_files(
                files, rules, allow_unsafe=unsafe_fixes, write=fix and not diff, within=chosen
            )
        )
    else:
        reports = list(check_files(files, rules))
    report_trouble(reports)
    if diff:
        raise typer.Exit(show_diff(reports))
    text = format_reports(reports, rules, style)
    if text:
        typer.echo(text)
    if style is OutputFormat.TEXT:
        typer.echo(format_summary(reports))
    raise typer.Exit(status_of(reports))


def _style(name: str) -> OutputFormat:
    from .finding_formats import OutputFormat

    try:
        return OutputFormat(name)
    except ValueError:
        names = ", ".join(each.value for each in OutputFormat)
        raise typer.BadParameter(
            f"{name!r} is not a format; choose one of {names}", param_hint="--output-format"
        ) from None


def _words(flag: str, texts: Sequence[str] | None) -> list[str]:
    """Return the codes in the values of a flag, after checking them."""
    from ..errors import SourceError
    from ..migration.selection import select_rules

    words: list[str] = []
    for text in texts or ():
        found = text.replace(",", " ").split()
        if not found:
            raise typer.BadParameter(
                f"{text!r} names no rule; write codes, as in ARC1,ARC203", param_hint=flag
            )
        words += found
    try:
        select_rules(words, ())
    except SourceError as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None
    return words


def _settings(paths: Sequence[Path]) -> Settings:
    from ..migration.settings import read_settings

    first = paths[0]
    return read_settings(first if first.is_dir() else first.parent)


def _explain(code: str) -> None:
    from ..migration.explain import page_of
    from ..migration.rules.every import RULES
    from ..migration.selection import find_rule

    if code.lower() == "all":
        for rule in RULES:
            typer.echo(f"{rule.code}  {rule.name}")
    else:
        typer.echo(page_of(find_rule(code)), nl=False)


def report_trouble(reports: Sequence[FileReport]) -> None:
    """Name on the error stream the files that could not be read, rewritten or written."""
    for report in reports:
        if report.trouble is not None:
            sys.stderr.write(f"anyrig: warning: {report.path}: {report.trouble}\n")


def show_diff(reports: Sequence[FileReport]) -> int:
    """Print what would change, and return the exit status: 1 if something would."""
    from .finding_formats import format_diff

    changed = [each.rewriting for each in reports if each.rewriting and each.rewriting.is_changed]
    for rewriting in changed:
        typer.echo(format_diff(rewriting), nl=False)
    return 2 if any(report.trouble is not None for report in reports) else int(bool(changed))


def status_of(reports: Sequence[FileReport]) -> int:
    """Return the exit status: 2 for trouble, 1 for findings, otherwise 0."""
    if any(report.trouble is not None for report in reports):
        return 2
    return int(any(report.findings for report in reports))
