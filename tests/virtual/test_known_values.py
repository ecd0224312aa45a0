"""Shape-only mode knows small tensors from the host, constants, and results computed from them."""

from __future__ import annotations

from on_a_rig import PROGRAMS, output_of

UNKNOWN = "ValueNeededError"
ANSWERS = {
    "from the host": "[1.0, 2.0, 3.0]",
    "arithmetic": "[3.0, 5.0, 7.0]",
    "a sum": "6.0",
    "a mask": "[2.0, 3.0]",
    "nonzero": "[[0], [2]]",
    "equal": "True",
    "a view": "[2.0, 3.0]",
    "chosen columns": "[[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]",
    "half": "[0.5, 1.0, 1.5]",
    "a counter": "1.0",
    "mixed with unknown": UNKNOWN,
    "filled anew": "3.0",
    "drawn": UNKNOWN,
    "many zeros": "[0.0, 0.0, 0.0, 0.0]",
    "full": "[[7, 7], [7, 7]]",
    "a triangle": "[[0, 1, 1], [0, 0, 1]]",
    "a diagonal": "[[1.0, 0.0], [0.0, 1.0]]",
    "steps": "[0.0, 0.5, 1.0]",
    "nothing": "0.0",
    "padded": "[9.0, 1.0, 2.0, 3.0, 9.0]",
    "packed sequences": "True",
    "distinct": "[2, 2, 2, 2, 2, 2]",
    "found": "[[1], [2]]",
    "counted": "[2, 2, 2, 2, 2, 2]",
    "written in place": "[1.0, 5.0, 1.0, 1.0]",
    "captured": UNKNOWN,
    "filled after the capture": "[1.0, 1.0, 1.0]",
    "replayed": UNKNOWN,
    "half of it written": UNKNOWN,
    "the written half": "[1.0, 2.0]",
    "both halves written": "[1.0, 2.0, 3.0, 4.0]",
    "a part overwritten": UNKNOWN,
    "running mean": "[0.0, 0.0]",
    "running mean after a batch": UNKNOWN,
    "batches": "1",
    "chosen by a known mask": "(2, 4)",
    "selected by a known mask": "(8,)",
    "unknown data at known places": str([[0.0] * 4, [1.0] * 4, [1.0] * 4]),
    "chosen by an unknown mask": UNKNOWN,
    "written through a conjugate": UNKNOWN,
    "a lazy clone": "[2.0, 3.0, 4.0]",
    "what it was cloned from": "[1.0, 2.0, 3.0]",
    "written through DLPack": UNKNOWN,
    "a row of it unknown": UNKNOWN,
    "around a drawn view": UNKNOWN,
    "made smaller": "[0, 1]",
    "made larger": UNKNOWN,
    "another's memory": "[2.0, 3.0]",
    "written there": UNKNOWN,
    "out": "[2.0, 4.0, 6.0]",
    "out of unknown": UNKNOWN,
    "a gradient": "[2.0, 2.0]",
    "dropped out": UNKNOWN,
    "drawn probabilities": UNKNOWN,
    "a drawn permutation": UNKNOWN,
    "drawn lots": UNKNOWN,
    "lists": "[[1.0, 1.0], [2.0, 2.0]]",
    "a list with unknown numbers": UNKNOWN,
    "parts of a list that overlap": UNKNOWN,
    "a large product": UNKNOWN,
    "an outer product": UNKNOWN,
    "sent to a process": UNKNOWN,
    "shared with a process": UNKNOWN,
    "gradients of a scaler": UNKNOWN,
    "a scaler's step": "None",
    "a scaler's scale": "8.0",
    "a permutation inverted": "[1, 2, 0]",
    "not all of it scattered to": UNKNOWN,
    "scattered to one place twice": UNKNOWN,
    "unknown numbers scattered": UNKNOWN,
    "a range": "[7.0, 5.0, 3.0]",
    "a range into known numbers": "[5, 6, 7]",
    "a long range": UNKNOWN,
    "lengths of sequences in any order": "((3, 5, 6), [2, 5, 3])",
    "generator's state there and back": "True",
    "two mebibytes": "1.0",
    "two mebibytes of zeros": "False",
    "more": UNKNOWN,
    "padding of long texts": "True",
    "the first of many": "1.0",
    "beyond 256 MiB": UNKNOWN,
    "small ones beyond 256 MiB": "True",
    "once they are freed": "1.0",
    "four million numbers": UNKNOWN,
    "four million bytes": "4194304",
}


def test_what_is_known_and_what_is_not() -> None:
    lines = output_of(str(PROGRAMS / "known_values.py")).splitlines()
    assert dict(line.split(" -> ", 1) for line in lines) == ANSWERS


def test_no_value_is_wrong() -> None:
    """Random programs of constants, unknown numbers, views and writes, in both modes."""
    program = str(PROGRAMS / "random_values.py")
    computed = output_of(program).splitlines()
    known = output_of(program, "--shape-only").splitlines()
    assert len(computed) == len(known) > 500
    wrong = [pair for pair in zip(computed, known, strict=True) if pair[1] not in ok(pair[0])]
    assert wrong == []
    assert sum("?" not in line for line in known) > len(known) // 4


def ok(line: str) -> tuple[str, str]:
    """Return what shape-only mode may print for this line of compute mode."""
    program, place, _ = line.split("|")
    return line, f"{program}|{place}|?"
