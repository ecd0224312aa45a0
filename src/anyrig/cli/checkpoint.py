"""`anyrig checkpoint`: show, verify, compare and convert checkpoints of anyrig and other tools."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ..units import format_bytes, format_count
from .help_screen import Command
from .script_command import Commands

checkpoint = typer.Typer(
    cls=Commands,
    help="Show, verify, compare and convert checkpoints, of anyrig and of other tools.",
    no_args_is_help=True,
)

_CheckpointPath = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", help="A checkpoint or a series of anyrig, or another tool's file or folder."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print the facts as one JSON object.")]
_Key = Annotated[
    str | None,
    typer.Option("--key", help="The key of the state dict, if there are several."),
]
_Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]


@checkpoint.command(cls=Command)
def show(path: _CheckpointPath, as_json: _Json = False, key: _Key = None) -> None:
    """Show what a checkpoint holds: step, files, and each tensor's shape and type.

    For a series, list its checkpoints.
    """
    from ..checkpoint.describe import describe
    from .checkpoint_table import format_description

    _check_exists(path)
    description = describe(path, key)
    if as_json:
        typer.echo(json.dumps(asdict(description), indent=2))
    else:
        typer.echo(format_description(description))


@checkpoint.command(cls=Command)
def verify(path: _CheckpointPath, as_json: _Json = False) -> None:
    """Check whether every file is as it was saved. The exit status is 1 if a file is not."""
    from ..checkpoint.integrity import check_integrity

    _check_exists(path)
    found = check_integrity(path)
    if as_json:
        facts = [
            {
                "path": str(each.path),
                "good": not each.findings,
                "method": each.method,
                "findings": [
                    {"path": str(finding.path), "problem": finding.problem}
                    for finding in each.findings
                ],
            }
            for each in found
        ]
        typer.echo(json.dumps({"checkpoints": facts}, indent=2))
    else:
        for each in found:
            typer.echo(f"{'bad ' if each.findings else 'good'}  {each.path} ({each.method})")
            for finding in each.findings:
                typer.echo(f"      {finding.problem if finding.path == each.path else finding}")
    raise typer.Exit(int(any(each.findings for each in found)))


@checkpoint.command(cls=Command)
def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="The checkpoint to compare.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="The checkpoint to compare it with.")],
    as_json: _Json = False,
) -> None:
    """Compare the tensors of two checkpoints. The exit status is 1 if something differs.

    Prefixes that wrappers such as DistributedDataParallel add to names do not count as differences.
    """
    from ..checkpoint.any_model import read_any_model
    from ..checkpoint.compare import compare
    from .checkpoint_table import comparison_facts, format_comparison

    _check_exists(first)
    _check_exists(second)
    one, other = (read_any_model(path, whole=True) for path in (first, second))
    found = compare(one.tensors, other.fit_names(one.tensors.keys()))
    if as_json:
        typer.echo(json.dumps(comparison_facts(found), indent=2))
    else:
        typer.echo(format_comparison(found))
    raise typer.Exit(int(not found.is_equal))


@checkpoint.command(cls=Command)
def convert(
    source: Annotated[
        Path, typer.Argument(metavar="SRC", help="A checkpoint in any recognised format.")
    ],
    target: Annotated[
        Path,
        typer.Argument(metavar="DST", help="The file to write: *.safetensors, *.pt, *.pth, *.bin."),
    ],
    force: _Force = False,
    keep_names: Annotated[
        bool,
        typer.Option("--keep-names", help="Keep prefixes that wrappers added, such as module."),
    ] = False,
    key: _Key = None,
) -> None:
    """Write the model's tensors to one safetensors file or one plain torch file."""
    from ..checkpoint.convert import convert as convert_checkpoint

    _check_exists(source)
    done = convert_checkpoint(source, target, overwrite=force, keep_names=keep_names, key=key)
    typer.echo(f"{source}: {done.recognition}")
    if done.renamed:
        typer.echo(f"{format_count(done.renamed, 'name')} lost a prefix that a wrapper had added")
    if done.left_out:
        typer.echo(f"not converted: {', '.join(done.left_out)}")
    _print_written(target, done)


@checkpoint.command(cls=Command)
def consolidate(
    path: _CheckpointPath,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="The file to write; by default PATH with .safetensors at its end.",
        ),
    ] = None,
    force: _Force = False,
) -> None:
    """Join the shards of a model into one safetensors file, using little memory."""
    from ..checkpoint.consolidate import consolidate as consolidate_checkpoint

    _check_exists(path)
    folder = path.resolve()
    target = folder.with_name(f"{folder.name}.safetensors") if output is None else output
    done = consolidate_checkpoint(path, target, overwrite=force)
    typer.echo(f"{path}: {done.recognition}")
    _print_written(target, done)


def _print_written(target: Path, done: Any) -> None:
    count = format_count(done.tensors, "tensor")
    typer.echo(f"wrote {target}: {count}, {format_bytes(done.bytes)}")


def _check_exists(path: Path) -> None:
    """Refuse a path that does not exist or that this user cannot read."""
    try:
        if path.is_dir():
            next(path.iterdir(), None)
        else:
            path.open("rb").close() if path.is_file() else path.stat()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise typer.BadParameter(f"{str(path)!r}: {reason}", param_hint="PATH") from None
