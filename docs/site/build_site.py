"""Build the site in build/site. A warning, a dead link or a file from the network is an error.

`make docs` runs this. The pages open from the disk and need no network.
"""

from __future__ import annotations

import re
import subprocess
import sys

from check_links import mistakes_of
from stage_pages import ROOT, stage

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def build() -> int:
    """Build the site, print what is wrong with it, and return the exit status."""
    stage()
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output = COLOUR.sub("", run.stdout.decode())
    if run.returncode:
        print(output.partition("Traceback")[0])
        return run.returncode
    # Griffe reports mistakes of docstrings, for which Zensical has no strict mode.
    mistakes = [line for line in output.splitlines() if line.startswith("griffe:")]
    mistakes += mistakes_of(ROOT / "build" / "site")
    for mistake in mistakes:
        print(mistake)
    print(f"build/site: {len(mistakes)} mistakes")
    return bool(mistakes)


if __name__ == "__main__":
    sys.exit(build())
