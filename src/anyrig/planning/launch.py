"""`Launch`: how to start a program with a plan, as text for each tool that starts it.

::

    Launch ──▶ command      ANYRIG_PLAN='Shards()' anyrig run --nproc-per-node 8 train.py
           ├─▶ torchrun     the same, by torchrun
           ├─▶ slurm        a batch script
           ├─▶ kubernetes   a PyTorchJob of Kubeflow's training operator
           └─▶ skypilot     a task
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import PlanningError
from ..programs.program import Program
from ..virtual.rig import VirtualRig
from .arrangement import Arrangement

_PORT = 29400
_IMAGE = "your-registry/your-image:tag"


@dataclass(frozen=True)
class Launch:
    """A program, its plan and its rig.

    Attributes:
        program: the program.
        arrangement: the plan, and the number of processes.
        rig: the rig.
    """

    program: Program
    arrangement: Arrangement
    rig: VirtualRig

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return self.rig.node_count

    @property
    def gpus(self) -> int:
        """The number of GPUs of a node.

        Raises:
            PlanningError: the nodes have different numbers.
        """
        counts = {len(self.rig.devices_of_node(node)) for node in range(self.nodes)}
        if len(counts) > 1:
            raise PlanningError(
                f"the nodes of {self.rig} have {', '.join(map(str, sorted(counts)))} GPUs, and a "
                "job has the same number on each; start each node by anyrig run instead"
            )
        return counts.pop()

    @property
    def command(self) -> str:
        """The command line for a shell; on several nodes, for the shell of each node."""
        return f"{self._variables} {self._command('anyrig run')}"

    def environment_from(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return environment variables that name this plan, and otherwise those given."""
        return {**environment, **self.arrangement.environment}

    def verify_words(self, more: Sequence[str]) -> list[str]:
        """Return the words after ``anyrig`` that verify the plan, with further arguments."""
        ranks = self.arrangement.processes
        return [
            *("verify", "--rig", str(self.rig)),
            *([] if ranks == 1 else ["--nproc-per-node", str(self.gpus)]),
            *(["-m"] if self.program.is_module else []),
            *(self.program.name, *self.program.arguments, *more),
        ]

    @property
    def code(self) -> str:
        """The argument of `anyrig.spread`."""
        return self.arrangement.arguments

    @property
    def _variables(self) -> str:
        """The plan's environment variables, as words of a shell."""
        given = self.arrangement.environment
        return " ".join(f"{name}={shlex.quote(value)}" for name, value in given.items())

    def _command(self, launcher: str, endpoint: str = f"NODE0:{_PORT}") -> str:
        program = shlex.join(
            [
                *(["-m"] if self.program.is_module else []),
                self.program.name,
                *self.program.arguments,
            ]
        )
        if self.arrangement.processes == 1:
            return f"python {program}"
        nodes = f"--nnodes {self.nodes} --rdzv-backend c10d --rdzv-endpoint {endpoint} "
        return f"{launcher} {nodes if self.nodes > 1 else ''}--nproc-per-node {self.gpus} {program}"

    def torchrun(self) -> str:
        """Return the command line of torchrun."""
        return f"{self._variables} {self._command('torchrun')}\n"

    def slurm(self) -> str:
        """Return a script for ``sbatch``."""
        endpoint = f'"$head:{_PORT}"'
        start = f"srun {self._command('anyrig run', endpoint)}"
        head = 'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        return (
            "#!/bin/bash\n"
            f"#SBATCH --job-name={self._name}\n"
            f"#SBATCH --nodes={self.nodes}\n"
            "#SBATCH --ntasks-per-node=1\n"
            f"#SBATCH --gpus-per-node={self.gpus}\n"
            "#SBATCH --exclusive\n"
            f"# GPUs: {self.rig}\n"
            "set -euo pipefail\n"
            f"export {self._variables}\n"
            f"{head if self.nodes > 1 else ''}{start}\n"
        )

    def kubernetes(self) -> str:
        """Return a PyTorchJob, as YAML that is also JSON."""
        endpoint = f"{self._name}-master-0:{_PORT}"
        container = {
            "name": "pytorch",  # the training operator looks for this name
            "image": _IMAGE,
            "command": ["bash", "-c", f"exec {self._command('anyrig run', endpoint)}"],
            "env": [
                {"name": name, "value": value}
                for name, value in self.arrangement.environment.items()
            ],
            "ports": [{"name": "pytorchjob-port", "containerPort": _PORT}],
            "resources": {"limits": {"nvidia.com/gpu": str(self.gpus)}},
        }
        template = {"spec": {"containers": [container]}}
        replicas: dict[str, Any] = {
            "Master": {"replicas": 1, "restartPolicy": "OnFailure", "template": template}
        }
        if self.nodes > 1:
            replicas["Worker"] = {**replicas["Master"], "replicas": self.nodes - 1}
        return _as_yaml(
            {
                "apiVersion": "kubeflow.org/v1",
                "kind": "PyTorchJob",
                "metadata": {"name": self._name},
                "spec": {
                    "runPolicy": {"cleanPodPolicy": "None"},  # the logs remain
                    "pytorchReplicaSpecs": replicas,
                },
            }
        )

    def skypilot(self) -> str:
        """Return a task of SkyPilot, as YAML that is also JSON.

        Raises:
            PlanningError: the GPUs of a node are unequal.
        """
        keys = sorted({device.key for device in self.rig.devices})
        if len(keys) > 1:
            raise PlanningError(
                f"a task of SkyPilot has GPUs of one kind, and {self.rig} has {', '.join(keys)}; "
                "use --as slurm or torchrun"
            )
        run = self._command("anyrig run", f'"$head:{_PORT}"')
        head = 'head=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)\n' if self.nodes > 1 else ""
        return _as_yaml(
            {
                "name": self._name,
                "resources": {"accelerators": f"{_SKYPILOT.get(keys[0], keys[0])}:{self.gpus}"},
                "num_nodes": self.nodes,
                "workdir": ".",
                "envs": self.arrangement.environment,
                "setup": "pip install anyrig",
                "run": f"{head}{run}",
            }
        )

    @property
    def _name(self) -> str:
        """A name of the job that Kubernetes accepts: lower case letters, digits and hyphens."""
        stem = Path(self.program.name).stem.lower()
        plain = "".join(each if each.isascii() and each.isalnum() else "-" for each in stem)
        return plain.strip("-")[:40].strip("-") or "train"


# SkyPilot's names of GPUs, where they are not those of a rig.
_SKYPILOT = MappingProxyType(
    {
        "A100-40GB": "A100",
        "H100-SXM": "H100",
        "H100-PCIe": "H100",
        "H200-SXM": "H200",
        "V100-16GB": "V100",
        "V100-32GB": "V100-32GB",
        "RTX-4090": "RTX4090",
        "RTX-3090": "RTX3090",
    }
)

FORMS: Mapping[str, Callable[[Launch], str]] = MappingProxyType(
    {
        "torchrun": Launch.torchrun,
        "slurm": Launch.slurm,
        "kubernetes": Launch.kubernetes,
        "skypilot": Launch.skypilot,
    }
)


def _as_yaml(content: dict[str, Any]) -> str:
    """Return YAML: JSON is, and needs no package."""
    return json.dumps(content, indent=2) + "\n"
