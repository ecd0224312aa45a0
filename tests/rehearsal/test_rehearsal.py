"""What a `Rehearsal` is, before anything runs."""

import pytest

from anyrig.programs.program import Program
from anyrig.rehearsal.rehearsal import Rehearsal
from anyrig.virtual.rig import VirtualRig


def test_values_are_assumed_only_where_none_are_computed() -> None:
    program, rig = Program("train.py"), VirtualRig.parse("T4")
    with pytest.raises(ValueError, match=r"assume_values needs shape_only, .*add shape_only"):
        Rehearsal(program, rig, assume_values=True)
    assert Rehearsal(program, rig, shape_only=True, assume_values=True).assume_values
    plain = Rehearsal(program, rig)
    assert (plain.shape_only, plain.assume_values) == (False, False)
