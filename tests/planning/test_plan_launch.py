"""What starts a plan: each form is read by the tool's own parser, where a package has it."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from anyrig.errors import PlanningError
from anyrig.parallel.plan_text import read_plan
from anyrig.planning.arrangement import PIPELINE, REPLICAS, SHARDS, VARIABLE, Arrangement
from anyrig.planning.arrangements import arrangements_on
from anyrig.planning.launch import FORMS, Launch
from anyrig.programs.program import Program
from anyrig.virtual.rig import VirtualRig

PROGRAM = Program("my train.py", ("--lr", "1e-4", "it's"))
ALONE = Arrangement(PIPELINE, 1, (("micro_batches", 8), ("schedule", "1f1b")))


def launch(rig: str = "2x(8xA100-80GB)", arrangement: Arrangement | None = None) -> Launch:
    parsed = VirtualRig.parse(rig)
    return Launch(PROGRAM, arrangement or Arrangement(SHARDS, len(parsed.devices)), parsed)


def test_commands_have_the_plan_and_quoted_arguments() -> None:
    ranks = launch("8xA100-80GB")
    words = "'my train.py' --lr 1e-4 'it'\"'\"'s'"
    assert ranks.command == f"ANYRIG_PLAN='Shards()' anyrig run --nproc-per-node 8 {words}"
    assert FORMS["torchrun"](ranks) == (
        f"ANYRIG_PLAN='Shards()' torchrun --nproc-per-node 8 {words}\n"
    )
    assert "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint NODE0:29400" in launch().command
    alone = launch("2xT4", ALONE)
    plan = 'Pipeline(micro_batches=8, schedule="1f1b")'
    assert alone.command == f"ANYRIG_PLAN='{plan}' python {words}"
    assert alone.code == f"plan=anyrig.{plan}"
    assert alone.verify_words(["--layers", "2"])[:3] == ["verify", "--rig", "2xT4"]
    assert ranks.verify_words([])[3:5] == ["--nproc-per-node", "8"]
    # The further arguments come last, where they override the program's.
    assert ranks.verify_words(["--lr", "1e-2"])[5:] == [
        PROGRAM.name,
        *PROGRAM.arguments,
        "--lr",
        "1e-2",
    ]
    module = Launch(Program("train", (), is_module=True), Arrangement(REPLICAS, 1), alone.rig)
    assert module.command == "ANYRIG_PLAN='Replicas()' python -m train"


def test_every_form_has_the_precision() -> None:
    plan = Arrangement(SHARDS, 8, precision="bfloat16")
    made = launch("8xA100-80GB", plan)
    assert made.command.startswith("ANYRIG_PLAN='Shards()' ANYRIG_PRECISION=bfloat16 anyrig run ")
    assert made.code == 'plan=anyrig.Shards(), precision="bfloat16"'
    assert "\nexport ANYRIG_PLAN='Shards()' ANYRIG_PRECISION=bfloat16\n" in FORMS["slurm"](made)
    assert all("ANYRIG_PRECISION" in write(made) for write in FORMS.values())
    assert made.environment_from({})["ANYRIG_PRECISION"] == "bfloat16"


def test_the_plan_takes_the_place_of_one_in_the_environment() -> None:
    before = {VARIABLE: "Replicas()", "HOME": "/home/ann"}
    assert launch().environment_from(before) == {VARIABLE: "Shards()", "HOME": "/home/ann"}


def test_every_plan_is_one_that_spread_reads() -> None:
    for one in arrangements_on(VirtualRig.parse("8xA100-80GB")):
        plan = read_plan(str(one))
        assert type(plan).__name__ == one.plan
        assert all(getattr(plan, name) == value for name, value in one.values)
        ast.parse(launch("8xA100-80GB", one).code)


@pytest.mark.parametrize("rig", ["8xA100-80GB", "2x(8xA100-80GB)"])
def test_a_batch_script_of_slurm(rig: str, tmp_path: Path) -> None:
    script = FORMS["slurm"](launch(rig))
    (tmp_path / "job.sh").write_text(script)
    subprocess.run(["bash", "-n", str(tmp_path / "job.sh")], check=True)
    flags = dict(re.findall(r"^#SBATCH --(\S+)=(\S+)$", script, re.MULTILINE))
    assert flags["nodes"] == ("2" if rig.startswith("2x(") else "1")
    assert flags["gpus-per-node"] == "8"
    assert "\nexport ANYRIG_PLAN='Shards()'\n" in script
    # What the script runs, with stand-ins for the commands of the cluster.
    says = 'srun() { printf "%s\\n" "$@"; }\nscontrol() { printf "first\\nsecond\\n"; }\n'
    done = subprocess.run(
        ["bash", "-c", f"SLURM_JOB_NODELIST=x\n{says}{script}"],
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.splitlines()
    assert words[:2] == ["anyrig", "run"]
    assert words[-4:] == ["my train.py", "--lr", "1e-4", "it's"]
    assert ("first:29400" in words) == rig.startswith("2x(")


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="Slurm's sbatch is not installed")
def test_slurm_accepts_the_script(tmp_path: Path) -> None:
    if subprocess.run(["scontrol", "ping"], capture_output=True, check=False).returncode:
        pytest.skip("no Slurm controller answers scontrol ping")
    (tmp_path / "job.sh").write_text(FORMS["slurm"](launch()))
    subprocess.run(["sbatch", "--test-only", str(tmp_path / "job.sh")], check=True)


@pytest.mark.parametrize(
    ("script", "name"),
    [("-My_Train.py", "my-train"), ("é.py", "train"), (f"{39 * 'a'}--b.py", 39 * "a")],
)
def test_a_job_has_a_name_that_kubernetes_accepts(script: str, name: str) -> None:
    rig = VirtualRig.parse("T4")
    job = FORMS["kubernetes"](Launch(Program(script, ()), Arrangement(REPLICAS, 1), rig))
    assert json.loads(job)["metadata"]["name"] in (name, f"anyrig-{name}")


def test_a_job_of_kubernetes() -> None:
    job = json.loads(FORMS["kubernetes"](launch()))
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {name: each["replicas"] for name, each in replicas.items()} == {"Master": 1, "Worker": 1}
    (container,) = replicas["Worker"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert {"name": VARIABLE, "value": "Shards()"} in container["env"]
    assert f"{job['metadata']['name']}-master-0:29400" in container["command"][-1]
    alone = json.loads(FORMS["kubernetes"](launch("4xT4", ALONE)))
    assert [*alone["spec"]["pytorchReplicaSpecs"]] == ["Master"]


def test_kubeflow_reads_the_job() -> None:
    reason = "kubeflow-training is not installed"
    api: Any = pytest.importorskip("kubeflow.training.api_client", reason=reason)
    job = json.loads(FORMS["kubernetes"](launch()))
    response = type("Response", (), {"data": json.dumps(job)})()
    client = api.ApiClient()
    read = client.deserialize(response, "KubeflowOrgV1PyTorchJob")
    assert client.sanitize_for_serialization(read) == job  # with all fields, and no other


def test_skypilot_reads_the_task(tmp_path: Path) -> None:
    sky: Any = pytest.importorskip("sky", reason="skypilot is not installed")
    (tmp_path / "task.yaml").write_text(FORMS["skypilot"](launch()))
    task = sky.Task.from_yaml(str(tmp_path / "task.yaml"))
    assert task.num_nodes == 2
    (resources,) = task.resources
    assert resources.accelerators == {"A100-80GB": 8}


def test_a_task_of_skypilot_has_gpus_of_one_kind() -> None:
    task = json.loads(FORMS["skypilot"](launch()))
    assert (task["num_nodes"], task["resources"]["accelerators"]) == (2, "A100-80GB:8")
    assert task["envs"] == {VARIABLE: "Shards()"}
    with pytest.raises(PlanningError, match="has RTX-3090, RTX-4090; use --as slurm"):
        FORMS["skypilot"](launch("RTX-4090+2xRTX-3090", ALONE))
    with pytest.raises(PlanningError, match="have 1, 2 GPUs"):
        FORMS["slurm"](launch("(2xT4)+(T4)", Arrangement(SHARDS, 3)))
