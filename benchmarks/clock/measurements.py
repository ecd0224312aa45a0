"""Public measurements of single operators on real GPUs, as work records.

`read_rows` reads one file of the folder of measurements. Half of the shapes, chosen by a checksum,
are for fitting, and the other half only judges. The columns of a record are those of the
extension's `Works`.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

Columns = dict[str, list[float]]
Line = Mapping[str, str]

# The keys of specs.toml of the GPUs that the files name.
GPUS = {
    "T4": "T4",
    "V100-PCIE-32GB": "V100-PCIe-32GB",
    "P100-PCIE-16GB": "P100-PCIe-16GB",
    "A100-PCIE-40GB": "A100-PCIe-40GB",
    "A100-PCIE-80GB": "A100-PCIe-80GB",
    "A100-SXM": "A100-80GB",
    "H100-SXM": "H100-SXM",
}

# The time of a call that does nothing, in milliseconds, where events enclose single calls.
EVENT_FLOOR_MS = {
    "T4": 0.025,
    "V100-PCIe-32GB": 0.032,
    "P100-PCIe-16GB": 0.041,
    "A100-PCIe-40GB": 0.026,
    "A100-PCIe-80GB": 0.026,
}

# In the order of csrc/time/work.h.
FLOAT32, BFLOAT16 = 1.0, 3.0
POINTWISE, NORMALIZATION, SOFTMAX = 0.0, 2.0, 6.0
FLASH, CUDNN = 0.0, 2.0

# At half of an H100's bandwidth: keys and values are written in blocks of the cache.
CACHE_BYTES_PER_SECOND = 0.5 * 3350e9

# Softmax reads longer rows twice.
LONGEST_ROW_READ_ONCE = 1024


@dataclass(frozen=True)
class Overhead:
    """The part of measured times that is not the GPU's work, but the host's.

    Attributes:
        start_ms: that of the first measurement of a file.
        growth_ms: by how much that of the last one is longer; it grows evenly.
    """

    start_ms: float
    growth_ms: float = 0.0

    def ms_at(self, progress: Any) -> Any:
        """Return the overhead when this share of all measurements had been made."""
        return self.start_ms + self.growth_ms * np.asarray(progress)


@dataclass(frozen=True)
class Rows:
    """Measurements of one kind of operator on one GPU.

    Attributes:
        gpu: key of `specs.toml`.
        columns: the work records, by column.
        ms: the measured time of each record.
        shapes: what tells the records apart; decides which half a record belongs to.
        floor_ms: the shortest time that the method of measurement can show.
        progress: the share of all measurements of the file that had been made before each one.
        overhead: the part of each time that is not the GPU's work; None if the fit finds it.
    """

    gpu: str
    columns: Columns
    ms: list[float]
    shapes: list[tuple[float, ...]]
    floor_ms: float
    progress: list[float]
    overhead: Overhead | None = Overhead(0.0)

    def select(self, keep: Callable[[int], bool]) -> Rows:
        """Return the records whose index satisfies `keep`."""
        chosen = [i for i in range(len(self.ms)) if keep(i)]
        return Rows(
            self.gpu,
            {name: [column[i] for i in chosen] for name, column in self.columns.items()},
            [self.ms[i] for i in chosen],
            [self.shapes[i] for i in chosen],
            self.floor_ms,
            [self.progress[i] for i in chosen],
            self.overhead,
        )

    def to_fit(self, floors: float) -> Rows:
        return self.select(lambda i: fits(self.shapes[i]) and self.ms[i] > floors * self.floor_ms)

    def to_judge(self, floors: float = 5) -> Rows:
        return self.select(
            lambda i: not fits(self.shapes[i]) and self.ms[i] > floors * self.floor_ms
        )


def fits(shape: Sequence[float]) -> bool:
    """Return whether records of `shape` are for fitting; the others judge."""
    return zlib.crc32(",".join(str(int(size)) for size in shape).encode()) % 2 == 0


def read_lines(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def table(records: Sequence[Mapping[str, float]]) -> Columns:
    return {name: [float(record[name]) for record in records] for name in records[0]}


def product(batch: float, m: float, n: float, k: float, precision: float, size: float) -> Line:
    read, written = size * batch * (m * k + k * n), size * batch * m * n
    return {  # type: ignore[return-value]
        "family": 1,
        "precision": precision,
        "element_bytes": size,
        "batch": batch,
        "m": m,
        "n": n,
        "k": k,
        "flops": 2 * batch * m * n * k,
        "bytes_read": read,
        "bytes_written": written,
        "footprint_bytes": read + written,
    }


def rows_of(
    lines: Sequence[Line],
    gpu: str,
    record: Callable[[Line], Mapping[str, float]],
    shape: Sequence[str],
    floor_ms: float,
    time: str = "ms",
) -> Rows:
    return Rows(
        gpu,
        table([record(line) for line in lines]),
        [float(line[time]) for line in lines],
        [tuple(float(line[name]) for name in shape) for line in lines],
        floor_ms,
        progress_of(lines),
    )


def progress_of(measured: Sequence[object]) -> list[float]:
    return [i / len(measured) for i in range(len(measured))]


def shortest_ms(rows: Rows) -> float:
    """Return the time of the fastest calls for fitting: all but 2 % take longer."""
    seen = sorted(t for t, shape in zip(rows.ms, rows.shapes, strict=True) if fits(shape))
    return seen[len(seen) // 50]


def with_event_overhead(rows: Rows) -> Rows:
    """Return `rows` with the host's share of small calls as overhead.

    Events enclose the host's part of a call, and each operator has its own. The fastest calls show
    it, since their kernels take about 2 microseconds.
    """
    return replace(rows, overhead=Overhead(shortest_ms(rows) - 0.002))


def float32_products(folder: Path, operator: str, name: str) -> Rows:
    """Read ``linear`` or ``bmm``.

    In these files N is the inner size, and K the columns of the result, as the grids show.
    """
    lines = [
        line
        for line in read_lines(folder / f"fp32_{operator}.csv.gz")
        # A batch of one is a plain product.
        if line["card"] == name and (operator == "linear" or line["B"] != "1")
    ]

    def record(line: Line) -> Mapping[str, float]:
        batch, m, k, n = (float(line[size]) for size in "BMNK")
        return product(batch, m, n, k, FLOAT32, 4)  # type: ignore[return-value]

    rows = rows_of(lines, GPUS[name], record, "BMNK", EVENT_FLOOR_MS[GPUS[name]])
    return with_event_overhead(rows)


def bfloat16_products(folder: Path, name: str) -> Rows:
    lines = [line for line in read_lines(folder / "bf16_linear.csv.gz") if line["card"] == name]

    def record(line: Line) -> Mapping[str, float]:
        m, n, k = (float(line[size]) for size in "mnk")
        return product(1, m, n, k, BFLOAT16, 2)  # type: ignore[return-value]

    return rows_of(lines, GPUS[name], record, "mnk", 0.0025)


def attention(folder: Path, name: str) -> Rows:
    """Read causal attention of head sizes 64 and 128: version 2 on A100, 3 on H100 (as cuDNN's).

    A call first writes keys and values to the cache. On the H100, where calls without a cache were
    measured too, the time of that is taken off.
    """
    lines = [
        line
        for line in read_lines(folder / "bf16_attention_forward.csv.gz")
        if line["card"] == name
        and line["kv_cache_dtype"] == "bfloat16"
        and line["head_dim"] in ("64", "128")
        and line["window_size"] in ("", "0", "0.0")
    ]

    def record(line: Line) -> Mapping[str, float]:
        names = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
        batch, length, heads, key_heads, size = (float(line[column]) for column in names)
        read = 2 * batch * length * size * (heads + 2 * key_heads)
        written = 2 * batch * length * size * heads
        return {
            "family": 3,
            "precision": BFLOAT16,
            "element_bytes": 2,
            "kernel": CUDNN if name == "H100-SXM" else FLASH,
            "batch": batch,
            "heads": heads,
            "queries": length,
            "keys": length,
            "share": 0.5,
            "flops": 4 * batch * heads * length * length * size,
            "bytes_read": read,
            "bytes_written": written,
            "footprint_bytes": read + written,
        }

    shape = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
    floor = min(float(line["latency"]) for line in lines)
    rows = rows_of(lines, GPUS[name], record, shape, floor, "latency")
    if name == "H100-SXM":
        moved = (8 * batch * length * heads * size for batch, length, _, heads, size in rows.shapes)
        taken = (1e3 * each / CACHE_BYTES_PER_SECOND for each in moved)
        rows = replace(rows, ms=[ms - off for ms, off in zip(rows.ms, taken, strict=True)])
    return rows


_ACCESS = {"ln": NORMALIZATION, "softmax": SOFTMAX}
_MEMORY_OPERATORS = ("add", "mul", "relu", "gelu", "tanh", "softmax", "ln")


def memory_bound(folder: Path, name: str) -> list[Rows]:
    """Read the memory-bound operators, one entry an operator."""
    found = []
    for operator in _MEMORY_OPERATORS:
        lines = [
            line for line in read_lines(folder / f"fp32_{operator}.csv.gz") if line["card"] == name
        ]

        def record(line: Line, operator: str = operator) -> Mapping[str, float]:
            rows, columns = float(line["B"]), float(line["H"])
            size = 4 * rows * columns
            operands = 2 if operator in ("add", "mul") else 1
            again = operator == "softmax" and columns > LONGEST_ROW_READ_ONCE
            return {
                "family": 0,
                "access": _ACCESS.get(operator, POINTWISE),
                "rows": rows,
                "bytes_read": (operands + again) * size,
                "bytes_written": size,
                "footprint_bytes": (operands + 1) * size,
            }

        gpu = GPUS[name]
        found.append(with_event_overhead(rows_of(lines, gpu, record, "BH", EVENT_FLOOR_MS[gpu])))
    return found


def convolutions(folder: Path, name: str) -> Rows:
    """Read 3 x 3 convolutions of stride 1, forward, in float32 and NCHW.

    The lines are in the order of the measurements, in which the host's part of a call grew by 0.3
    to 0.7 ms on all four hosts, whatever the shapes.
    """
    lines = [line for line in read_lines(folder / "fp32_conv.csv.gz") if line["card"] == name]

    def record(line: Line) -> Mapping[str, float]:
        names = ("B", "in_channels", "out_channels", "kernel_size", "in_size", "stride", "padding")
        batch, inputs, outputs, kernel, size, stride, padding = (float(line[c]) for c in names)
        out = (size + 2 * padding - kernel) // stride + 1
        return convolution(0, batch, inputs, outputs, (size, size), (out, out), kernel, stride)

    shape = ("B", "in_channels", "out_channels", "in_size")
    rows = rows_of(lines, GPUS[name], record, shape, EVENT_FLOOR_MS[GPUS[name]])
    return replace(rows, overhead=None)


def convolution(
    number: int,
    batch: float,
    inputs: float,
    outputs: float,
    size: tuple[float, float],
    out: tuple[float, float],
    kernel: float | tuple[float, float],
    stride: float | tuple[float, float],
) -> dict[str, float]:
    """Return the record of a float32 convolution; `number`: 0 forward, 1 by input, 2 by weight."""
    kernels = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    strides = stride if isinstance(stride, tuple) else (stride, stride)
    given = 4 * batch * inputs * size[0] * size[1]
    result = 4 * batch * outputs * out[0] * out[1]
    weight = 4 * inputs * outputs * kernels[0] * kernels[1]
    written = (result, given, weight)[number]
    read = given + result + weight - written
    return {
        "family": 2,
        "precision": FLOAT32,
        "element_bytes": 4,
        "pass": number,
        "batch": batch,
        "in_channels": inputs,
        "out_channels": outputs,
        "in_h": size[0],
        "in_w": size[1],
        "out_h": out[0],
        "out_w": out[1],
        "kernel_h": kernels[0],
        "kernel_w": kernels[1],
        "stride_h": strides[0],
        "stride_w": strides[1],
        "flops": 2 * batch * outputs * out[0] * out[1] * inputs * kernels[0] * kernels[1],
        "bytes_read": read,
        "bytes_written": written,
        "footprint_bytes": read + written,
    }


_DEEPBENCH = {"V100-32GB": "V100__Results_FP32.csv", "T4": "T4__Results_FP32.csv"}


def deepbench_convolutions(folder: Path, gpu: str) -> Rows:
    """Read DeepBench's convolutions: three passes each, without overhead.

    Without those of 3 x 3 and stride 1, forward and by input, whose kernels `convolutions` reads
    many more of.
    """
    records, ms, shapes = [], [], []
    with (folder / "deepbench" / _DEEPBENCH[gpu]).open() as file:
        for line in csv.reader(file):
            if len(line) < 16 or not line[1].strip().isdigit():
                continue
            width, height, inputs, batch, outputs, s, r, pad_w, pad_h, step_w, step_h = (
                int(float(cell)) for cell in line[1:12]
            )
            out = ((height + 2 * pad_h - r) // step_h + 1, (width + 2 * pad_w - s) // step_w + 1)
            for number, cell in enumerate(line[12:15]):
                is_known = number < 2 and (s, r, step_w, step_h) == (3, 3, 1, 1)
                if cell.startswith("N/A") or is_known:
                    continue
                records.append(
                    convolution(
                        number, batch, inputs, outputs, (height, width), out, (r, s),
                        (step_h, step_w),
                    )
                )  # fmt: skip
                ms.append(float(cell))
                shapes.append((width, height, inputs, batch, outputs, s, r))
    return Rows(gpu, table(records), ms, shapes, 0.02, progress_of(ms))
