"""Programs that use every feature and then end: without crash, hang or abort."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from on_a_rig import PROGRAMS, output_of, output_of_lines


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.sweep)])
def test_a_program_that_uses_everything_ends(times: int) -> None:
    for _ in range(times):
        assert output_of(str(PROGRAMS / "uses_everything.py"), fresh=True) == "done\n"


def test_empty_rehearsals_leave_nothing_behind(tmp_path: Path) -> None:
    script, temporary = tmp_path / "empty.py", tmp_path / "temporary"
    script.write_text("import torch\n")
    temporary.mkdir()
    before = psutil.Process().children()
    for _ in range(2):
        command = ("-m", "anyrig", "rehearse", "--rig", "2x1GiB", str(script))
        output_of(*command, fresh=True, TMPDIR=str(temporary))
        assert list(temporary.iterdir()) == []
        assert psutil.Process().children() == before


def test_a_thread_with_a_device_of_its_own_does_not_move_the_others() -> None:
    lines = output_of_lines(
        """
        import threading
        import torch
        from anyrig.virtual import install

        install("2x1GiB")
        torch.cuda.set_device(1)

        def other() -> None:
            print(torch.cuda.current_device(), torch.ones(1, device="cuda").device)
            torch.cuda.set_device(0)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        print(torch.cuda.current_device(), torch.ones(1, device="cuda").device)
        """
    )
    assert lines == ["0 cuda:0", "1 cuda:1"]
