"""Facts of a rehearsal that was never run: a language model, data-parallel, like a real document.

::

    host      ├ next(loader) ┤├ model(x) ─────────┤├ loss.backward() ────────┤├ optimizer.step() ┤
    stream 0      ├copy┤   ├ kernels of the layers ┤├ kernels ───────────────┤├ wait ┤├ kernels ┤
    stream 20                                          ├ all_reduce ┤├ all_reduce ──┤

More than 400 lines: the facts refer to each other, as those of one rehearsal do.
"""

from __future__ import annotations

from random import Random
from typing import Any

FORWARD = [
    ("aten::layer_norm", "norm", 6.0),
    ("aten::mm", "attention.qkv", 61.0),
    ("aten::scaled_dot_product_attention", "attention", 38.0),
    ("aten::addmm", "attention.out", 24.0),
    ("aten::add", "", 5.0),
    ("aten::layer_norm", "norm_2", 6.0),
    ("aten::addmm", "mlp.up", 84.0),
    ("aten::gelu", "mlp.activation", 11.0),
    ("aten::addmm", "mlp.down", 82.0),
    ("aten::add_", "", 5.0),
]
GIB = 2**30


class Document:
    """Collects intervals and texts."""

    def __init__(self, jitter: float) -> None:
        self._jitter, self._random = jitter, Random(0)
        self.texts: list[str] = []
        self.intervals: list[tuple[Any, ...]] = []
        self._places: dict[str, int] = {}

    def text(self, text: str | None) -> int:
        if text is None:
            return -1
        if text not in self._places:
            self._places[text] = len(self.texts)
            self.texts.append(text)
        return self._places[text]

    def add(
        self,
        track: int,
        begin: float,
        seconds: float,
        kind: str,
        name: str,
        module: str | None = None,
        line: str | None = None,
        count: int = -1,
        flow: int = -1,
    ) -> float:
        if self._jitter:
            seconds *= 1 + self._jitter * self._random.random()
        row = (self.text(name), self.text(module), self.text(line), count, flow)
        self.intervals.append((track, begin, seconds, self.text(kind), *row))
        return begin + seconds

    def columns(self) -> dict[str, list[Any]]:
        names = ("track", "begin_seconds", "seconds", "kind", "name", "module", "line")
        columns = zip(*sorted(self.intervals, key=lambda row: row[1]), strict=True)
        return dict(zip((*names, "bytes", "flow"), map(list, columns), strict=True))


def make_facts(
    devices: int = 2, steps: int = 5, layers: int = 6, jitter: float = 0.0
) -> dict[str, Any]:
    """Return the facts of a program on `devices` GPUs, with three tracks per device.

    With `jitter`, no two intervals take the same time: such facts compress badly.
    """
    document = Document(jitter)
    tracks: list[dict[str, Any]] = []
    for rank in range(devices):
        tracks += [
            {"title": f"rank {rank} host", "rank": rank, "device": None, "stream": None},
            {"title": f"cuda:{rank} stream 0", "rank": rank, "device": rank, "stream": 0},
            {"title": f"cuda:{rank} stream 20", "rank": rank, "device": rank, "stream": 20},
        ]
    curves: list[list[tuple[float, int]]] = [[] for _ in range(devices)]
    begin, step_facts = 0.25, []
    for number in range(1, steps + 1):
        end, path = _step(document, curves, devices, layers, number, begin)
        step_facts.append(
            {
                "number": number,
                "is_first": number <= 2,
                "begin_seconds": begin,
                "end_seconds": end,
                "samples": 64 * devices,
                "waits": 1,
                "loader_wall_seconds": 0.002,
                "path": path,
            }
        )
        begin = end
    typical = [step for step in step_facts if not step["is_first"]]
    seconds = sum(step["end_seconds"] - step["begin_seconds"] for step in typical)
    seconds /= max(len(typical), 1)
    return {
        "format": "anyrig-rehearsal",
        "version": 1,
        "program": "train.py",
        "arguments": ["--batch", "64"],
        "rig": f"{devices}xA100-80GB",
        "shape_only": True,
        "torch": "2.13.0",
        "anyrig": "0.1.0",
        "status": 0,
        "error": None,
        "devices": [
            _device(rank, max(total for _, total in curves[rank])) for rank in range(devices)
        ],
        "step_interval": {
            "low_seconds": 0.8 * seconds,
            "high_seconds": 1.2 * seconds,
            "programs": 44,
            "reason": "training steps, on this GPU",
            "apart": None,
        },
        "steps": step_facts,
        "typical_step": {
            "seconds": seconds,
            "samples_per_second": 64 * devices / seconds,
            "of_steps": [step["number"] for step in typical],
        }
        if typical
        else None,
        "tracks": tracks,
        "texts": document.texts,
        "intervals": document.columns(),
        "memory": [_memory(rank, curve) for rank, curve in enumerate(curves)],
        "findings": [
            {
                "code": "R05",
                "title": "The program waits for the device in every step",
                "line": "train.py:31",
                "saved_seconds": 0.0011,
                "saved_bytes": None,
                "text": "loss.item() stops the host until the device has finished the step, so "
                "that the next step's kernels are launched late.",
                "remedy": "Add up loss.detach() on the device, and read the sum every 50 steps.",
            },
            {
                "code": "R11",
                "title": "Gradients are reduced after the backward pass has ended",
                "line": "train.py:33",
                "saved_seconds": 0.0006,
                "saved_bytes": None,
                "text": "The last bucket holds 41 % of all gradients, and its all-reduce overlaps "
                "with nothing.",
                "remedy": "Pass bucket_cap_mb=10 to DistributedDataParallel.",
            },
            {
                "code": "R21",
                "title": "The optimizer's state could be sharded",
                "line": None,
                "saved_seconds": None,
                "saved_bytes": 6 * GIB,
                "text": "Every rank holds the same 6.9 GiB of AdamW's state.",
                "remedy": "Use ZeroRedundancyOptimizer, or fully_shard.",
            },
        ],
    }


def _step(
    document: Document,
    curves: list[list[tuple[float, int]]],
    devices: int,
    layers: int,
    number: int,
    begin: float,
) -> tuple[float, list[dict[str, Any]]]:
    """Add the intervals of one step; return its end and its critical path."""
    slow = 3.0 if number == 1 else 1.0  # the first step loads kernels
    micro, held = 1e-6 * slow, [int(14.2 * GIB)] * devices
    ends, reduced, forward_of, backward_of, copied = [], [], [], [], 0.0
    for rank in range(devices):
        host, stream, comm = 3 * rank, 3 * rank + 1, 3 * rank + 2
        flow = 1000 * number + 10 * rank
        skew = 1 + 0.004 * rank
        load = document.add(
            host,
            begin,
            (180 + 40 * (number % 3)) * micro,
            "loader",
            "next(loader)",
            None,
            "train.py:25",
        )
        copy_line = "train.py:27"
        copied = document.add(
            stream, load, 45 * micro, "copy", "Memcpy HtoD", None, copy_line, 64 * 1024 * 4097, flow
        )
        document.add(host, load, 45 * micro, "host", "aten::to", None, copy_line, -1, flow)
        now, launch = copied, load + 45 * micro
        model_begin = launch
        for layer in range(layers):
            for position, (name, part, microseconds) in enumerate(FORWARD):
                module = f"blocks.{layer}" + (f".{part}" if part else "")
                line = f"model.py:{40 + position}"
                document.add(host, launch, 9 * micro, "host", name, module, line)
                launch += 10 * micro
                now = max(now, launch)
                now = document.add(
                    stream, now, microseconds * micro * skew, "kernel", name, module, line
                )
                held[rank] += int(0.05 * GIB)
                curves[rank].append((now, held[rank]))
        document.add(
            host, model_begin, launch - model_begin, "host", "model(x)", None, "train.py:29"
        )
        forward_of.append(now)
        backward_begin = launch
        buckets: list[float] = []
        for layer in reversed(range(layers)):
            for position, (name, part, microseconds) in reversed(list(enumerate(FORWARD))):
                module = f"blocks.{layer}" + (f".{part}" if part else "")
                line = f"model.py:{40 + position}"
                for _ in range(2):
                    document.add(host, launch, 9 * micro, "host", f"{name}Backward", module, line)
                    launch += 10 * micro
                    now = max(now, launch)
                    now = document.add(
                        stream,
                        now,
                        microseconds * micro * skew,
                        "kernel",
                        f"{name}Backward",
                        module,
                        line,
                    )
                held[rank] -= int(0.048 * GIB)
                curves[rank].append((now, held[rank]))
            buckets.append(now)
        backward_of.append(now)
        document.add(
            host,
            backward_begin,
            launch - backward_begin,
            "host",
            "loss.backward()",
            None,
            "train.py:30",
        )
        reduced.append((comm, buckets, launch))
    # Every rank's all-reduce begins when the last rank is ready, and ends everywhere at once.
    free = 0.0
    for bucket in range(layers):
        ready = [buckets[bucket] for _, buckets, _ in reduced]
        start = max(free, *ready)
        size = int((0.35 if bucket < layers - 1 else 0.9) * GIB / 4)
        for (comm, _, _), own in zip(reduced, ready, strict=True):
            own = max(own, free)
            if start > own:
                document.add(comm, own, start - own, "wait", "waits for other ranks")
            document.add(
                comm,
                start,
                size / 230e9 * slow,
                "collective",
                "nccl:all_reduce",
                None,
                "train.py:30",
                size,
                1_000_000 + 100 * number + bucket,
            )
        free = start + size / 230e9 * slow
    for rank, (_, _, launch) in enumerate(reduced):
        stream, host = 3 * rank + 1, 3 * rank
        document.add(
            stream, backward_of[rank], free - backward_of[rank], "wait", "waits for stream 20"
        )
        now = free
        for part in range(12):
            now = document.add(
                stream,
                now,
                55 * micro,
                "kernel",
                "aten::_fused_adamw_",
                f"AdamW group {part}",
                "train.py:32",
            )
        document.add(
            host, launch, now - launch, "wait", "cudaStreamSynchronize", None, "train.py:31"
        )
        curves[rank].append((now, int(14.2 * GIB)))
        ends.append(now)
    end = max(ends)
    return end, _path(document, begin, copied, forward_of[-1], backward_of[-1], free, end, layers)


def _path(
    document: Document,
    begin: float,
    copied: float,
    forward: float,
    backward: float,
    reduced: float,
    end: float,
    layers: int,
) -> list[dict[str, Any]]:
    """Return the critical path: the last rank's kernels, then the last all-reduce."""
    last = len({interval[0] for interval in document.intervals}) // 3 - 1
    text = document.text

    def segment(
        kind: str, seconds: float, track: int, name: str, module: str | None, line: str
    ) -> dict[str, Any]:
        place = (text(name), text(module), text(line))
        return {
            "kind": kind,
            "seconds": seconds,
            "track": track,
            **{
                key: None if value < 0 else value
                for key, value in zip(("name", "module", "line"), place, strict=True)
            },
        }

    load = copied - begin
    parts = [
        segment("loader", load * 0.8, 3 * last, "next(loader)", None, "train.py:25"),
        segment("copy", load * 0.2, 3 * last + 1, "Memcpy HtoD", None, "train.py:27"),
    ]
    for direction, suffix in ((range(layers), ""), (reversed(range(layers)), "Backward")):
        whole = forward - copied if not suffix else backward - forward
        for layer in direction:
            for index, (name, part, microseconds) in enumerate(FORWARD):
                share = microseconds / sum(one[2] for one in FORWARD) / layers
                module = f"blocks.{layer}" + (f".{part}" if part else "")
                parts.append(
                    segment(
                        "kernel",
                        whole * share,
                        3 * last + 1,
                        name + suffix,
                        module,
                        f"model.py:{40 + index}",
                    )
                )
    parts.append(
        segment(
            "collective", reduced - backward, 3 * last + 2, "nccl:all_reduce", None, "train.py:30"
        )
    )
    parts.append(
        segment("kernel", end - reduced, 3 * last + 1, "aten::_fused_adamw_", None, "train.py:32")
    )
    return parts


def _device(rank: int, peak: int) -> dict[str, Any]:
    return {
        "index": rank,
        "rank": rank,
        "gpu": "A100-80GB",
        "capacity_bytes": 79 * GIB,
        "peak": {
            "total_bytes": peak + int(1.6 * GIB),
            "tensor_bytes": peak - GIB,
            "workspace_bytes": GIB // 4,
            "context_bytes": GIB // 2,
            "collective_bytes": GIB // 2,
            "cached_bytes": GIB,
            "headroom_bytes": 79 * GIB - peak - int(1.6 * GIB),
        },
        "busy_share": 0.86 - 0.01 * rank,
        "waiting_share": 0.06 + 0.01 * rank,
        "idle_share": 0.08,
    }


def _memory(rank: int, curve: list[tuple[float, int]]) -> dict[str, Any]:
    points = [(0.2, 0, 0, 0, 0), (0.22, 0, 0, GIB // 2, 0)]
    reserved = 0
    for seconds, held in sorted(curve):
        reserved = max(reserved, held)
        points.append((seconds, held, GIB // 4, GIB // 2, reserved - held))
    columns = list(zip(*points, strict=True))
    peak = max(columns[1])
    return {
        "device": rank,
        "rank": rank,
        "seconds": list(columns[0]),
        "tensor_bytes": list(columns[1]),
        "workspace_bytes": list(columns[2]),
        "context_bytes": list(columns[3]),
        "cached_bytes": list(columns[4]),
        "kinds_at_peak": {
            "parameters": int(3.4 * GIB),
            "gradients": int(3.4 * GIB),
            "optimizer": int(6.9 * GIB),
            "activations": peak - int(14.2 * GIB),
            "other": int(0.5 * GIB),
        },
    }
