"""Shape-only mode knows small tensors copied from the host, and results computed from them."""

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
    "many zeros": UNKNOWN,
    "written in place": "[1.0, 5.0, 1.0, 1.0]",
    "captured": UNKNOWN,
    "half of it written": UNKNOWN,
    "the written half": "[1.0, 2.0]",
    "both halves written": "[1.0, 2.0, 3.0, 4.0]",
    "a part overwritten": UNKNOWN,
    "running mean": "[0.0, 0.0]",
    "running mean after a batch": UNKNOWN,
    "batches": "1",
    "a scaler's step": "None",
    "a scaler's scale": "8.0",
    "a permutation inverted": "[1, 2, 0]",
    "not all of it scattered to": UNKNOWN,
    "unknown numbers scattered": UNKNOWN,
    "a range": "[7.0, 5.0, 3.0]",
    "a range into known numbers": "[5, 6, 7]",
    "a long range": UNKNOWN,
    "lengths of sequences in any order": "((3, 5, 6), [2, 5, 3])",
    "generator's state there and back": "True",
    "a mebibyte": "1.0",
    "more": UNKNOWN,
    "four million numbers": UNKNOWN,
    "four million bytes": "4194304",
}


def test_what_is_known_and_what_is_not() -> None:
    lines = output_of(str(PROGRAMS / "known_values.py")).splitlines()
    assert dict(line.split(" -> ", 1) for line in lines) == ANSWERS
