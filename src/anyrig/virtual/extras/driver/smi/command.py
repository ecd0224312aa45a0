"""The command `nvidia-smi`: its options and its output."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pynvml

from .gpu import Gpu, gpus
from .query import query_gpus, query_holders
from .refusal import Refusal
from .report import report
from .table import table
from .topology import topology

_INVALID, _NOT_FOUND, _NO_DRIVER = 2, 6, 9

_HELP = """\
nvidia-smi of a rehearsal: the virtual GPUs of anyrig.

    nvidia-smi                                  the GPUs and the processes that use them
    nvidia-smi -L                               one line per GPU
    nvidia-smi --query-gpu=FIELDS --format=csv[,noheader][,nounits]
    nvidia-smi --query-compute-apps=FIELDS --format=csv[,noheader][,nounits]
    nvidia-smi -q [-d MEMORY,UTILIZATION,TEMPERATURE,POWER,CLOCK,PIDS]
    nvidia-smi topo -m                          the connections between the GPUs
    -i, --id=GPUS         only these GPUs: index, UUID, serial number or PCI bus id
    -l, --loop=SECONDS    repeat until interrupted; also -lms, --loop-ms=MILLISECONDS
    -f, --filename=FILE   write to this file
"""

# Each option that takes a value, and its long form. The default of -l is 5 s.
_LONG = {"-i": "id", "-d": "display", "-f": "filename", "-l": "loop", "-lms": "loop-ms"}
_VALUED = {*_LONG.values(), "query-gpu", "query-compute-apps", "query-apps", "format"}
_ALONE = {"-L": "list-gpus", "-q": "query", "-h": "help"}
_DEFAULT_SECONDS = "5"


@dataclass
class Options:
    """The options of one command line."""

    values: dict[str, str] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)

    def list(self, name: str) -> list[str]:
        """Return the comma-separated values of the option `name`."""
        return [word.strip() for word in self.values.get(name, "").split(",") if word.strip()]


def main(arguments: Sequence[str]) -> int:
    """Print the output for `arguments` and return the exit status, as nvidia-smi does."""
    try:
        if list(arguments[:1]) == ["topo"]:
            options = _read_options(["-i", *arguments[3:]] if arguments[2:3] == ["-i"] else [])
            if "-m" not in arguments and "--matrix" not in arguments:
                raise _unknown(" ".join(arguments))
            options.flags.add("topology")
        else:
            options = _read_options(arguments)
        if "help" in options.flags:
            sys.stdout.write(_HELP)
            return 0
        pynvml.nvmlInit()
    except Refusal as refusal:
        sys.stdout.write(f"{refusal}\n")
        return refusal.status
    except pynvml.NVMLError:
        sys.stdout.write(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make "
            "sure that the latest NVIDIA driver is installed and running.\n\n"
        )
        return _NO_DRIVER
    try:
        return _write_output(options)
    except Refusal as refusal:
        sys.stdout.write(f"{refusal}\n")
        return refusal.status
    except (KeyboardInterrupt, BrokenPipeError):
        return 0
    finally:
        pynvml.nvmlShutdown()


def _write_output(options: Options) -> int:
    """Write the output, once or in a loop; return the exit status."""
    pause = float(options.values.get("loop-ms", 0)) / 1000 or float(options.values.get("loop", 0))
    while True:
        text = _output(options)
        if "filename" in options.values:
            with Path(options.values["filename"]).open("a") as file:
                file.write(text)
        else:
            sys.stdout.write(text)
            sys.stdout.flush()
        if pause <= 0:
            return 0
        time.sleep(pause)
        # Only the first iteration of a query prints a header.
        options.values["format"] = options.values.get("format", "") + ",noheader"


def _output(options: Options) -> str:
    everything = list(gpus())
    chosen = _select(everything, options.list("id"))
    style = options.list("format")
    if "query-gpu" in options.values:
        return query_gpus(options.list("query-gpu"), chosen, style)
    for name in ("query-compute-apps", "query-apps"):
        if name in options.values:
            return query_holders(options.list(name), chosen, style)
    if "list-gpus" in options.flags:
        return "".join(f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})\n" for gpu in chosen)
    if "topology" in options.flags:
        return topology(chosen)
    if "query" in options.flags:
        return report(chosen, len(everything), options.list("display"))
    return table(chosen)


def _select(everything: list[Gpu], names: list[str]) -> list[Gpu]:
    """Return the GPUs that `names` identify, or all GPUs if `names` is empty."""
    chosen = [gpu for gpu in everything if any(gpu.matches_id(name) for name in names)]
    if names and not chosen:
        raise Refusal("No devices were found", _NOT_FOUND)
    return chosen or everything


def _read_options(arguments: Sequence[str]) -> Options:
    options = Options()
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        name = _LONG.get(name) or _ALONE.get(name) or name.removeprefix("--")
        if name in _ALONE.values() and not equals:
            options.flags.add(name)
        elif name in _VALUED:
            if not equals:
                has_value = bool(words) and not words[0].startswith("-")
                if not has_value and name != "loop":
                    raise _unknown(word)
                value = words.pop(0) if has_value else _DEFAULT_SECONDS
            options.values[name] = value
        else:
            raise _unknown(word)
    return options


def _unknown(word: str) -> Refusal:
    return Refusal(
        f"ERROR: Option {word} is not recognized. Please run 'nvidia-smi -h'.\n", _INVALID
    )
