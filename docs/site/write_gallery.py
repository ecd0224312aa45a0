"""Write the gallery in build/gallery: the report pages of real scripts, and an index.

`make gallery` runs this. It needs no GPU: each script is rehearsed on a virtual rig, without data.
"""

from __future__ import annotations

import html
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "gallery"
GALLERY = ROOT / "build" / "gallery"
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>Gallery of rehearsals</title>
<style>
  body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem; }}
  pre {{ font-size: 0.8rem; overflow-x: auto; padding: 0.8rem; border: 1px solid #8886; }}
</style>
<h1>Gallery of rehearsals</h1>
<p>Each script of <code>examples/gallery</code> ran on GPUs that are not there. Its report opens in
any browser, from the disk.</p>
{entries}
</html>
"""
ENTRY = """<h2><a href="{name}.html">{name}</a></h2>
<p>{title}</p>
<pre>$ {command}
{summary}</pre>
"""


@dataclass(frozen=True)
class Exhibit:
    """A script, and how it is rehearsed."""

    name: str
    rig: str
    values: str = "--assume-values"  # for scripts that print a loss

    @property
    def title(self) -> str:
        """The first paragraph of the script's docstring, as one line."""
        text = (SCRIPTS / f"{self.name}.py").read_text()
        return " ".join(text.split('"""')[1].replace("`", "").split())

    @property
    def command(self) -> str:
        """What a reader enters in the folder of the script."""
        flags = f"--rig {self.rig} {self.values} --report {self.name}.html"
        return f"anyrig rehearse {flags} {self.name}.py"

    def rehearse(self) -> str:
        """Write the report, and return its summary."""
        words = self.command.replace("--report ", f"--report {GALLERY}/").split()[1:]
        run = subprocess.run(
            [sys.executable, "-m", "anyrig", *words],
            cwd=SCRIPTS,
            env=os.environ | {"COLUMNS": "120"},
            capture_output=True,
            text=True,
        )
        if run.returncode:
            raise SystemExit(f"{self.command}\n{run.stdout}{run.stderr}")
        return run.stderr[run.stderr.index("anyrig: ") :]


EXHIBITS = (
    Exhibit("gpt2_data_parallel", "4xA100-80GB"),
    Exhibit("gpt2_spread", "4xA100-80GB", values="--shape-only"),
    Exhibit("llama_lora", "RTX-4090"),
    Exhibit("resnet_amp", "RTX-4090"),
    Exhibit("diffusion_unet", "A100-80GB"),
    Exhibit("gan", "RTX-4090"),
)


def write() -> None:
    """Write all reports and the index."""
    GALLERY.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max_workers=2) as pool:
        summaries = list(pool.map(Exhibit.rehearse, EXHIBITS))
    entries = [
        ENTRY.format(
            name=exhibit.name,
            title=html.escape(exhibit.title),
            command=exhibit.command,
            summary=html.escape(summary),
        )
        for exhibit, summary in zip(EXHIBITS, summaries, strict=True)
    ]
    (GALLERY / "index.html").write_text(PAGE.format(entries="".join(entries)))


if __name__ == "__main__":
    write()
