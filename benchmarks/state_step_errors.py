"""Write how far predicted steps were off, from the figures in `results`, where anyrig reads it.

`python benchmarks/state_step_errors.py write`, after `judge_steps.py`,
`judge_language_models.py`, `judge_iterations.py` and `judge_gpu.py`.
`check` prints how many of the programs lie in the intervals that the others give: a fifth of the
programs at a time, chosen by a checksum of their names, against the quantiles of the rest.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from anyrig import hardware
from clock.step_intervals import calibrate, holds, intervals_of
from clock.step_residuals import Residual, read_residuals

HEAD = """\
# How far predicted steps were off, by kind of step, for programs that were used in no fit.
# benchmarks/state_step_errors.py writes this file from the figures in benchmarks/results.
#
# known       what is known of the GPU's kernels of this kind: `Known` in step_errors.py
# low, high   the 5 and the 95 % quantiles of the measured over the predicted time; 1 lies between
# apart       the 90 % quantile of the factor between the errors of one program on two GPUs
# elsewhere   the power of these factors on a GPU of which no program was compared, with which nine
#             of ten programs lie in the intervals that the other GPUs' programs give
# A key that is absent stands for any. A kind has an entry if enough programs were measured; a step
# of a kind without one has that of the kind that contains it.
"""
# `NEWEST` of clock/step_fits.py, which needs the extra `clock`.
GPUS_WITH_MEASURED_STEPS = ("RTX-3090", "RTX-4090", "RTX-PRO-6000-Max-Q")


def text_of(residuals: list[Residual]) -> str:
    """Return the contents of the file."""
    lines = [HEAD, f"gpus_with_measured_steps = {json.dumps(GPUS_WITH_MEASURED_STEPS)}"]
    lines += ["sources = ["]
    lines += [f"    {json.dumps(source)}," for source in sorted({r.source for r in residuals})]
    lines += ["]"]
    table = intervals_of(residuals)
    lines += [f"elsewhere = {next(iter(table.values())).elsewhere:.2f}"]
    for kind, errors in table.items():
        lines += ["", "[[kinds]]", f'known = "{kind.known.value}"']
        about = ("on_matrix_units", "convolves", "trains", "gpu")
        given = {name: getattr(kind, name) for name in about}
        lines += [f"{k} = {json.dumps(v)}" for k, v in given.items() if v is not None]
        lines += [f"programs = {errors.programs}", f"gpus = {json.dumps(errors.gpus)}"]
        lines += [f"low = {errors.low:.3f}", f"high = {errors.high:.3f}"]
        lines += [] if errors.apart is None else [f"apart = {errors.apart:.3f}"]
    return "\n".join(lines) + "\n"


def report(residuals: list[Residual]) -> None:
    """Print how many programs lie in the intervals that the others give."""
    found = calibrate(residuals)
    held = [holds(errors, one) for errors, one in zip(found, residuals, strict=True)]
    by_kind: dict[str, list[bool]] = {}
    for one, is_inside in zip(residuals, held, strict=True):
        by_kind.setdefault(f"{one.gpu}, {one.kind}", []).append(is_inside)
    for kind, inside in sorted(by_kind.items()):
        print(f"{len(inside):4d} {100 * statistics.mean(inside):5.0f} %  {kind}")
    width = statistics.median(errors.high - errors.low for errors in found)
    print(
        f"{len(held)} programs on {len({one.gpu for one in residuals})} GPUs:"
        f" {100 * statistics.mean(held):.1f} % inside, the median interval is"
        f" {100 * width:.0f} % of the step"
    )


def main() -> int:
    if sys.argv[1:] not in (["write"], ["check"]):
        print("nothing to do; use: python benchmarks/state_step_errors.py write or check")
        return 0
    residuals = list(read_residuals(Path(__file__).with_name("results")))
    if sys.argv[1] == "check":
        report(residuals)
        return 0
    path = Path(hardware.__file__).with_name("step_errors.toml")
    path.write_text(text_of(residuals))
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
