"""Fit the coefficients of the virtual clock to public measurements, and write them.

`python benchmarks/fit_clock.py MEASUREMENTS` takes some ten minutes and needs the extra `clock`. It
is deterministic and writes the whole of `coefficients.toml`, except the groups `copy` and `host`.
The coefficients belong to the cost functions (`csrc/time/cost`) that they were fitted with: after a
change of these, the whole script is to run again.
Half of the rows, and half of the training programs, take part; `judge_clock.py` reports the errors
on the others. GPUs that nobody measured get tables that are derived from those of their nearest
relative, as their sources say. Whole programs are read from ``clock/records``.
``--only-hopper`` keeps the tables of all other GPUs as they are installed, and takes two minutes;
``--only-steps`` fits those of `clock/step_fits.py` and `clock/relatives.py` alone, and takes one.
The file is long because each fit uses the groups before it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np

from anyrig import hardware
from clock import collectives, gpu_fits, measurements, relatives, step_fits, training_programs
from clock.coefficient_file import Table, write_tables
from clock.fitting import OVERHEAD, Coefficients, Part, Unknown, facts, fit, fit_loss
from clock.gpu_rows import recorded_rows
from clock.grouped_transposes import fit_transposes
from clock.judgement import SAME_CHIP, Errors, judge_rows
from clock.measurements import GPUS, Overhead
from clock.programs import Programs
from clock.recorded_programs import read_programs
from clock.step_fits import Factors

Values = dict[str, list[float]]

NEUSIGHT = "NeuSight (sitar-lab, 6945927d), float32, torch 2.1"
AICONFIGURATOR = "aiconfigurator (ai-dynamo, 095f58a5), bfloat16"
TIMM = "timm (huggingface/pytorch-image-models, aa4b5850): training steps on an RTX 3090, float16"

# What measured GPUs stand for: a table's name, and the GPU that it is fitted to.
FLOAT32_GPUS = {
    "turing": "T4",
    "volta": "V100-PCIE-32GB",
    "pascal": "P100-PCIE-16GB",
    "otherwise": "A100-PCIE-40GB",
}
BFLOAT16_GPUS = {"hopper": "H100-SXM", "otherwise": "A100-SXM"}
HOPPER_GPU = BFLOAT16_GPUS["hopper"]
THROTTLED = ("turing", "volta")
# What `fit_hopper` writes.
HOPPER_TABLES = (
    *((group, "hopper") for group in (*gpu_fits.ROWS, "product.tensor", "attention")),
    ("product.tensor", "H100-PCIe"),
)

SIMT = ("product.simt", "batched.simt", "convolution.simt")
MATRIX = ("product.tensor", "convolution.tensor", "attention")
# What `fit_steps` writes.
STEP_GPUS = (*step_fits.NEWEST, "RTX-PRO-6000", "RTX-5090", "A10")
STEP_TABLES = (
    *((group, gpu) for group in step_fits.GROUPS for gpu in STEP_GPUS),
    *((group, derived.of) for group in MATRIX for derived in relatives.MATRIX),
    *((group, of) for group in MATRIX for of in ("RTX-2080-Ti", "TITAN-RTX")),
    *((group, of) for group in SIMT for of in (*relatives.SIMT, "RTX-2080-Ti")),
)

INFERENCE = "timm (huggingface/pytorch-image-models, aa4b5850): inference steps, float16"
BACKWARD = "backward passes: training steps of torch 1.12, cuDNN 8.3"

# The fractions of float products' rates that H100 and A100 sustain, by the ml-engineering notes.
# The fits of H100s in float32 start from as much less.
HOPPER = 0.803 / 0.869
# Fractions of the data sheet's rates that others measured where the power limit holds the clock
# down: bfloat16 at 499.5 of 756 TFLOP/s on an H100 over PCIe, and at 792.1 of 989 as SXM.
H100_PCIE_SLOWER = (792.1 / 989) / (499.5 / 756)
H100_PCIE_SOURCE = "As `hopper`, slower by the best products in mag-/gpu_benchmark (13f96a42)"

# A log-softmax along 1024 columns of 16 x 1024 x 50304 elements took 57.1 ms on an H100, whose 132
# multiprocessors run at 1.98 GHz, and its gradient 27.3 ms, in bfloat16 and float32: profiles of a
# GPT in which measure_gpu.py normalizes along tokens.
ELEMENT_CYCLES = [132 * 1.98e9 * ms / (16e3 * 1024 * 50304) for ms in (57.1, 27.3)]

# A column of a Cholesky factorization takes 0.75 us on an H100: pytorch/pytorch, pull request
# 173515.
FACTORIZATION_CYCLES = 1500.0

# cuDNN transposed 64 million halves from or to float32 in 13.7 ms on an RTX 3090: pytorch/pytorch,
# issue 54324.
GROUPED_TRANSPOSE_FRACTION = 64e6 * (2 + 4) / 13.7e-3 / 936e9
GROUPED_SOURCE = (
    "transposes of groups: pytorch/pytorch, issue 54324; of which groups: timm's results"
    " benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv"
)

# Relative to the fraction of pointwise work, in the order of `Access`; None: fitted.
POINTWISE_SHARES = (
    None, 0.9, None, None, 0.84, 0.87, None, None, 0.7, 0.45, 0.5, 0.7, 0.8, 0.9, 0.95, 0.33, 0.9,
    0.5, 1.0,
)  # fmt: skip
SHARES_SOURCE = (
    "batch norm and pooling: relative to pointwise work in a trace of ResNet-18 on an RTX 2080 Ti"
    " (facebookresearch/param, 1e115ffc); other accesses: estimates"
)

# Where the fit to training programs starts, by group, coefficient and index. `grouped_efficiency`
# follows from one program. The grouped programs prefer 0.7, but neither that value nor a fit to all
# programs lowers the errors on those that judge.
PROGRAM_STARTS = {
    "product.tensor": {
        "lone_share": {0: 0.6}, "memory_fraction": {0: 0.75}, "overlap": {0: 0.15},
    },
    "convolution.tensor": {
        "efficiency": {0: 0.85, 1: 0.8, 2: 0.75},
        "depthwise_efficiency": {0: 0.3, 1: 0.3, 2: 0.15},
        "memory_fraction": {0: 0.8}, "overlap": {0: 0.2}, "layout_fraction": {0: 0.8},
        "grouped_efficiency": {0: 0.4}, "depthwise_memory_fraction": {0: 0.6},
    },
    "memory": {
        "fraction": {
            0: 0.88, 1: 0.85, 2: 0.7, 3: 0.6, 4: 0.8, 5: 0.75, 12: 0.6, 14: 0.75, 15: 0.5,
        },
    },
}  # fmt: skip

START_TILES = (0.95, 0.95, 0.85, 0.75, 0.75, 0.6, 0.4, 0.4, 0.3, 0.3, 0.2)


def tile_unknowns(group: str, tiles: Sequence[int], block_cycles: float) -> list[Unknown]:
    found = [Unknown(f"{group}.tile_efficiency", START_TILES[i], i) for i in tiles]
    found += [
        Unknown(f"{group}.block_cycles", block_cycles, is_fraction=False),
        Unknown(f"{group}.lone_share", 0.7),
        Unknown(f"{group}.lone_exponent", 0.3),
        Unknown(f"{group}.wave_exponent", 0.6),
        Unknown(f"{group}.memory_fraction", 0.8),
        Unknown(f"{group}.overlap", 0.2),
        Unknown(f"{group}.long_penalty", 0.05, is_fraction=False),
    ]
    return found


def throttle_unknowns(group: str) -> list[Unknown]:
    return [
        Unknown(f"{group}.throttle", 0.2, is_fraction=False),
        Unknown(f"{group}.throttle_seconds", 2e-3, is_fraction=False),
    ]


class Fit:
    """All groups, in an order in which each uses those before it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tables: list[Table] = []

    def add(self, group: str, of: str, values: Coefficients, source: str) -> None:
        chosen = {k[len(group) + 1 :]: v for k, v in values.items() if k.startswith(f"{group}.")}
        self.tables.append(Table(group, of, chosen, source))
        print(f"{group}.{of}", flush=True)

    def derive(self, group: str, of: str, like: str, source: str, **changed: object) -> None:
        values = dict(self.find(group, like)) | changed
        self.tables.append(Table(group, of, values, source))

    def find(self, group: str, of: str) -> Values:
        return next(t.values for t in self.tables if (t.group, t.of) == (group, of))

    def base(self, gpu: str, of: str) -> Coefficients:
        """Return the installed coefficients with those that are fitted so far."""
        values: Coefficients = facts(gpu)[0].coefficients
        for table in self.tables:
            if table.of == of:
                values |= {f"{table.group}.{k}": list(v) for k, v in table.values.items()}
        return values

    def fit_memory(self) -> None:
        for of, name in FLOAT32_GPUS.items():
            parts = [Part(rows.to_fit(4)) for rows in measurements.memory_bound(self.folder, name)]
            base = self.base(GPUS[name], of)
            base["memory.kernel_floor_seconds"] = [2e-6]
            base["memory.cache_speedup"] = [2.5]
            base["memory.factorization_cycles"] = [FACTORIZATION_CYCLES]
            unknowns = [Unknown("memory.fraction", 0.85, i) for i in (0, 2, 6)]
            unknowns += [
                Unknown("memory.cache_share", 0.7),
                Unknown("memory.row_cycles", 50, is_fraction=False),
            ]
            values, _ = fit(base, unknowns, parts)
            fractions = values["memory.fraction"]
            for i, share in enumerate(POINTWISE_SHARES):
                if share is not None:
                    fractions[i] = share * fractions[0]
            fractions[3], fractions[7] = 0.9 * fractions[2], fractions[6]
            self.add("memory", of, values, f"{NEUSIGHT}, {name}; {SHARES_SOURCE}")
        share = list(self.find("memory", "otherwise")["cache_share"])
        self.derive(
            "memory", "L4", "turing",
            "As the T4, which has the same kind of memory; cache: as the A100, whose is as large",
            cache_share=share,
        )  # fmt: skip

    def fit_float32_products(self) -> None:
        for group, operator in (("product.simt", "linear"), ("batched.simt", "bmm")):
            tiles = (2, 3, 4, 5, 6, 7, 8, 9, 10) if operator == "linear" else (2, 3, 4, 5, 6, 7, 10)
            for of, name in FLOAT32_GPUS.items():
                rows = measurements.float32_products(self.folder, operator, name)
                base = self.base(rows.gpu, of)
                base[f"{group}.tile_efficiency"] = [0.0] * len(START_TILES)
                base[f"{group}.throttle"] = [0.0]
                unknowns = tile_unknowns(group, tiles, 500)
                unknowns += throttle_unknowns(group) if of in THROTTLED else []
                values, _ = fit(base, unknowns, [Part(rows.to_fit(3), trusted=0.25)])
                self.add(group, of, values, f"{NEUSIGHT}, {name}")

    def fit_bfloat16_of(self, of: str) -> None:
        group, name = "product.tensor", BFLOAT16_GPUS[of]
        rows = measurements.bfloat16_products(self.folder, name)
        unknowns = tile_unknowns(group, range(11), 2500) + throttle_unknowns(group)
        values, _ = fit(self.base(rows.gpu, of), unknowns, [Part(rows.to_fit(3))])
        self.add(group, of, values, f"{AICONFIGURATOR}, {name}")

    def fit_attention(self) -> None:
        name = BFLOAT16_GPUS["otherwise"]
        rows = measurements.attention(self.folder, name)
        kernel = int(rows.columns["kernel"][0])
        unknowns = [
            Unknown("attention.forward_efficiency", 0.7, kernel),
            Unknown("attention.head_overhead", 8, is_fraction=False),
            Unknown("attention.block_overhead", 64, is_fraction=False),
            Unknown("attention.memory_fraction", 0.8),
            # Each call also writes the cache of keys and values.
            Unknown("memory.kernel_floor_seconds", 1e-5, is_fraction=False),
        ]
        values, _ = fit(self.base(rows.gpu, "otherwise"), unknowns, [Part(rows.to_fit(3))])
        reached = values["attention.forward_efficiency"][kernel]
        forward = [reached, 0.55 * reached, reached]
        values["attention.forward_efficiency"] = forward
        values["attention.backward_efficiency"] = [63 / 73 * e for e in forward]
        source = f"{AICONFIGURATOR}, {name}, version 2; backward: arXiv 2307.08691, 63 of 73 %"
        self.add("attention", "otherwise", values, source)

    def fit_hopper(self) -> None:
        """Fit Hopper to the rows of `gpu_rows`, from what the tables `otherwise` say."""
        gpu = recorded_rows()
        memory = {
            "fraction": [0.9, *list(self.find("memory", "otherwise")["fraction"])[1:]],
            "softmax_column_element_cycles": ELEMENT_CYCLES,
        }
        self.fit_gpu(gpu, "memory", memory)
        for group in ("product.simt", "batched.simt"):
            self.fit_gpu(gpu, group, self.slower(group, "tile_efficiency"))
        self.fit_bfloat16_of("hopper")
        throttle = self.find("product.tensor", "hopper")["throttle"][0]
        self.derive(
            "product.tensor", "H100-PCIe", "hopper", H100_PCIE_SOURCE,
            throttle=[H100_PCIE_SLOWER * (1 + throttle) - 1],
        )  # fmt: skip
        group = "convolution.simt"
        slower = self.slower(group, "winograd_efficiency", "transformed_efficiency")
        self.fit_gpu(gpu, group, slower)
        self.fit_gpu(gpu, "convolution.tensor", {"planar_alignment_bytes": [16.0] * 3})
        rows = measurements.attention(self.folder, HOPPER_GPU)
        rows = replace(rows, overhead=Overhead(rows.floor_ms))
        base = self.base(GPUS[HOPPER_GPU], "hopper")
        base["attention.forward_efficiency"] = [0.42, 0.3, 0.9]
        base["attention.backward_efficiency"] = [63 / 73 * 0.42, 0.3, 0.8]
        values = gpu_fits.fit_attention(gpu, Part(rows.to_fit(3)), base)
        source = (
            f"{AICONFIGURATOR}, {HOPPER_GPU}, version 3 as cuDNN; {gpu_fits.SOURCE};"
            " version 2: arXiv 2407.08608, backward: arXiv 2307.08691, 63 of 73 %"
        )
        self.add("attention", "hopper", values, source)

    def slower(self, group: str, *names: str) -> Values:
        like = self.find(group, "otherwise")
        return {name: [HOPPER * each for each in like[name]] for name in names}

    def fit_gpu(self, gpu: Sequence[gpu_fits.Row], group: str, changed: Values) -> None:
        """Fit a group to the rows of `gpu`, from the values `otherwise` with those `changed`."""
        like = self.find(group, "otherwise") | changed
        base = self.base(GPUS[HOPPER_GPU], "hopper")
        base |= {f"{group}.{name}": list(values) for name, values in like.items()}
        values = gpu_fits.fit_group(gpu, group, base)
        self.add(group, "hopper", values, f"{gpu_fits.SOURCE}; otherwise as the A100")

    def fit_float32_convolutions(self) -> None:
        group = "convolution.simt"
        names = FLOAT32_GPUS | {"otherwise": "A100-PCIE-80GB"}
        deepbench = {"volta": "V100-32GB", "turing": "T4"}
        for of in ("volta", "turing", "pascal", "otherwise"):
            name = names[of]
            rows = measurements.convolutions(self.folder, name)
            parts = [Part(rows.to_fit(3))]
            base = self.base(rows.gpu, of)
            base[f"{group}.throttle"] = [0.0]
            unknowns = [Unknown(OVERHEAD, ms, is_fraction=False) for ms in (0.06, 0.3)]
            if of in deepbench:
                other = measurements.deepbench_convolutions(self.folder, deepbench[of])
                parts.append(Part(other.to_fit(2.5), weight=0.25, trusted=0.8))
                starts = enumerate((0.65, 0.65, 0.75))
                unknowns += [Unknown(f"{group}.efficiency", start, i) for i, start in starts]
                unknowns += throttle_unknowns(group)
            else:  # nothing but 3 x 3 convolutions was measured
                base[f"{group}.efficiency"] = list(self.find(group, "volta")["efficiency"])
            for coefficient, start in (
                ("memory_fraction", 0.6), ("overlap", 0.2), ("winograd_efficiency", 0.6),
                ("winograd_lone_share", 0.8),
                ("transform_fraction", 0.7), ("filter_fraction", 0.5),
            ):  # fmt: skip
                unknowns.append(Unknown(f"{group}.{coefficient}", start))
            unknowns.append(Unknown(f"{group}.winograd_overhead", 16, is_fraction=False))
            # The tiles of cuDNN's products between transforms, as their grids show.
            base[f"{group}.transformed_efficiency"] = [0.0] * len(START_TILES)
            unknowns += [Unknown(f"{group}.transformed_efficiency", 0.8, i) for i in (2, 3, 5, 7)]
            values, overhead = fit(base, unknowns, parts)
            print(f"overhead of a call: {overhead}")
            also = "; DeepBench (baidu-research, da81ba78)" if of in deepbench else ""
            self.add(group, of, values, f"{NEUSIGHT}, {name}{also}")

    def fit_collectives(self) -> None:
        for of, name in BFLOAT16_GPUS.items():
            values = collectives.fit_protocols(self.folder, name, self.base(GPUS[name], of))
            versions = "2.29" if of == "hopper" else "2.27"
            source = (
                f"aiconfigurator (ai-dynamo, 095f58a5): nccl-tests, NCCL {versions}, {name};"
                " between nodes: NCCL's src/graph/tuning.cc"
            )
            self.add("collective", of, values, source)

    def fit_programs(self, programs: Programs, grouped: Programs) -> None:
        product, convolution = "product.tensor", "convolution.tensor"
        # Not from the RTX 3090's own values, which are for a newer cuDNN.
        like = self.base("A100-80GB", "otherwise")
        like[f"{product}.tile_efficiency"] = list(START_TILES)
        like[f"{product}.throttle"] = like[f"{convolution}.throttle"] = [0.0]
        like[f"{convolution}.grouped_transpose_fraction"] = [GROUPED_TRANSPOSE_FRACTION]
        like[f"{convolution}.winograd_efficiency"] = [0.0]
        like[f"{convolution}.transformed_efficiency"] = [0.0] * len(START_TILES)
        unknowns = [Unknown(f"{product}.block_cycles", 3000, is_fraction=False)]
        unknowns += [
            Unknown(f"{product}.tile_efficiency", START_TILES[i], i) for i in (0, 2, 3, 5, 6, 8, 10)
        ]
        unknowns += [
            Unknown(f"{group}.{name}", start, i)
            for group, starts in PROGRAM_STARTS.items()
            for name, values in starts.items()
            for i, start in values.items()
        ]
        # There are few programs: cross-validation within the half for fitting chose these settings.
        values, _ = fit_loss(
            like, unknowns, lambda values, _: programs.loss(values), pull=0.02, starts=1
        )
        values = fit_transposes(values, grouped)
        self.add(convolution, "otherwise", values, f"{TIMM}; {GROUPED_SOURCE}")
        for table in self.tables:
            if table.group == "convolution.simt":
                kept = (
                    "grouped_efficiency", "grouped_transpose_widths", "grouped_transpose_channels",
                    "depthwise_efficiency", "depthwise_memory_fraction",
                )  # fmt: skip
                table.values.update({k: values[f"{convolution}.{k}"] for k in kept})

    def fit_steps(self) -> None:
        """Fit the GPUs of which whole steps were measured, and derive those of their relatives."""
        recorded = read_programs("inference")
        steps = {gpu: step_fits.inference_of(gpu, recorded) for gpu in step_fits.NEWEST}
        steps["RTX-3090"] += [
            Programs(read_programs(name), "RTX-3090") for name in ("training", "grouped")
        ]
        found = {}
        for gpu in ("RTX-4090", "RTX-3090"):
            base = self.base(gpu, "otherwise")
            found[gpu] = step_fits.fit_steps(base, steps[gpu], with_backward=gpu == "RTX-3090")
        # Only the RTX 3090's backward passes were measured.
        step_fits.take_backward(found["RTX-4090"], found["RTX-3090"])
        for gpu, values in found.items():
            self.add_groups(step_fits.GROUPS, gpu, values, f"{INFERENCE}, {gpu}; {BACKWARD}")
        ada = found["RTX-4090"]
        max_q = step_fits.fit_factors(ada, steps["RTX-PRO-6000-Max-Q"])
        matrix = relatives.share_of("RTX-PRO-6000", on_matrix_units=True)
        matrix /= relatives.share_of("RTX-4090", on_matrix_units=True)
        for gpu, factors, source in (
            ("RTX-PRO-6000-Max-Q", max_q, f"{INFERENCE}: two factors of the RTX-4090's values"),
            (
                "RTX-PRO-6000", Factors(matrix, max_q.memory),
                f"The RTX-4090's values: matrix units as in {relatives.PRODUCTS}, memory as the"
                " RTX-PRO-6000-Max-Q",
            ),
            (
                "RTX-5090", Factors(1.0, max_q.memory),
                "The RTX-4090's values, whose matrix units sum in float32 at half the rate, too;"
                " memory as the RTX-PRO-6000-Max-Q, which has the same chip",
            ),
        ):  # fmt: skip
            self.add_groups(step_fits.GROUPS, gpu, factors.scale(ada), source)
        self.derive_relatives(found)

    def derive_relatives(self, found: Mapping[str, Coefficients]) -> None:
        """Derive the tables of `relatives`, from those that are `found` and from `otherwise`."""
        general = self.base("A100-80GB", "otherwise")
        for of, measured, like, like_measured, memory in map(astuple, relatives.MATRIX):
            factors = Factors(
                relatives.share_of(measured, on_matrix_units=True)
                / relatives.share_of(like_measured, on_matrix_units=True),
                memory or 1.0,
            )
            source = f"As {like}, scaled by the best products in {relatives.PRODUCTS}"
            groups = MATRIX if memory is None else step_fits.GROUPS
            values = factors.scale(found.get(like, general))
            self.add_groups(groups, of, values, f"{source}; {relatives.COPIES}")
        share = relatives.RTX_2080_SHARE
        factors = Factors(share / relatives.share_of("RTX-3090", on_matrix_units=True))
        source = f"As the RTX-3090, scaled by the products of an RTX 2080 in {relatives.PRODUCTS}"
        self.add_groups(MATRIX, "RTX-2080-Ti", factors.scale(found["RTX-3090"]), source)
        source = "As `otherwise`: nobody measured it"
        self.add_groups(MATRIX, "TITAN-RTX", general, source)
        best = max(self.find("product.simt", "otherwise")["tile_efficiency"])
        for group in SIMT:
            for of in relatives.SIMT:
                slower = best / relatives.share_of(of, on_matrix_units=False) - 1
                self.derive(
                    group, of, "otherwise",
                    f"As `otherwise`, slower by the best products in {relatives.PRODUCTS};"
                    f" {relatives.COPIES}",
                    throttle=[slower], throttle_seconds=[1e-9],
                )  # fmt: skip
            self.derive(
                group, "RTX-2080-Ti", "turing", "As the T4, without its power limit", throttle=[0.0]
            )

    def add_groups(self, groups: Sequence[str], of: str, values: Coefficients, source: str) -> None:
        for group in groups:
            self.add(group, of, values, source)

    def keep(self, *groups: str, but: Sequence[tuple[str, str]] = ()) -> None:
        """Keep the installed tables of `groups`, which are not fitted."""
        for group in groups:
            for of, table in hardware.coefficient_groups()[group].items():
                if (group, of) not in but:
                    self.tables.append(Table(group, of, dict(table.values), table.source))


def with_errors(table: Table, found: Sequence[Errors]) -> Table:
    """Return `table` with the errors of the GPUs that use it."""
    errors = {}
    for each in found:
        uses = (
            next(
                group
                for group in hardware.coefficients_of(hardware.spec_of_key(each.gpu))
                if group.group == each.group
            )
            if each.group == table.group
            else None
        )
        if uses is not None and uses.of == table.of:
            errors |= dict.fromkeys((each.gpu, *SAME_CHIP.get(each.gpu, ())), each.median)
    return replace(table, error_percent=errors)


def main() -> int:
    if len(sys.argv) < 2:
        print("nothing to do; use: python benchmarks/fit_clock.py MEASUREMENTS")
        return 0
    folder = Path(sys.argv[1])
    fitted = Fit(folder)
    groups = hardware.coefficient_groups()
    if "--only-steps" in sys.argv:
        fitted.keep(*groups, but=STEP_TABLES)
        fitted.fit_steps()
    elif "--only-hopper" in sys.argv:
        fitted.keep(*groups, but=HOPPER_TABLES)
        fitted.fit_hopper()
    else:
        fit_others(fitted, folder)
        fitted.fit_steps()
        fitted.fit_hopper()
    path = Path(hardware.__file__).with_name("coefficients.toml")
    tables = sorted(fitted.tables, key=order)
    write_tables(path, tables)
    hardware.coefficient_groups.cache_clear()
    found = list(judge_rows(folder))
    write_tables(path, [with_errors(table, found) for table in tables])
    print(f"written to {path}")
    return 0


def order(table: Table) -> tuple[str, int]:
    """Return where a table stands in the file: those of Hopper last of their group."""
    return table.group, (table.group, table.of) in HOPPER_TABLES


def fit_others(fitted: Fit, folder: Path) -> None:
    fitted.fit_memory()
    fitted.fit_float32_products()
    fitted.fit_bfloat16_of("otherwise")
    fitted.fit_attention()
    fitted.fit_float32_convolutions()
    fitted.fit_collectives()
    programs, grouped = (
        Programs(read_programs(name), "RTX-3090").select(training_programs.fits)
        for name in ("training", "grouped")
    )
    fitted.fit_programs(programs, grouped)
    fitted.keep("copy", "host")


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(main())
