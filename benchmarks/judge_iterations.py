"""Judge the virtual clock by published times of single training iterations that no fit has seen.

`python benchmarks/judge_iterations.py run` predicts nanoGPT on an A100 and, if timm is installed,
the kernels of ResNet-50 on a V100. The figures go to `results`.

Sources: nanoGPT's README (karpathy/nanoGPT): about 250 ms an iteration, 135 ms compiled, before it
used flash attention. pytorch/kineto (blob 769c3eb7): a profile of torchvision's ResNet-50, batch
32, float32, with 98.6 ms of kernels a step.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from workloads.figures import write_figures

# Name: the GPU and the published milliseconds.
ITERATIONS = {
    "nanoGPT, compiled": ("A100-40GB", 135.0),
    "nanoGPT, eager": ("A100-40GB", 250.0),
    "kernels of ResNet-50, batch 32, float32": ("V100-32GB", 98.6),
}


def predict(name: str) -> float:
    """Predict in a new process, since a process has only one rig."""
    command = [sys.executable, __file__, "--only", name]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    return float(finished.stdout.splitlines()[-1])


def predict_here(name: str) -> float:
    from anyrig.virtual import install

    gpu, _ = ITERATIONS[name]
    install(gpu, shape_only=True, without_kernels=True)
    if name.startswith("nanoGPT"):
        from clock.nano_gpt import iteration_ms

        return iteration_ms(12, is_compiled="compiled" in name)
    return _resnet_kernel_ms()


def _resnet_kernel_ms() -> float:
    import timm
    import torch
    from torch.nn.functional import cross_entropy

    from anyrig.virtual.build import load_extension

    core = load_extension()
    torch.backends.cudnn.benchmark = True
    with torch.device("cuda"):
        model = timm.create_model("resnet50").train()
        images = torch.empty(32, 3, 224, 224)
        classes = torch.empty(32, dtype=torch.long)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, foreach=False)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        cross_entropy(model(images), classes).backward()
        optimizer.step()

    step()
    core.begin_work_log()
    step()
    return 1e3 * sum(core.end_work_log()["seconds"])


def main() -> int:
    if sys.argv[1:2] == ["--only"]:
        print(predict_here(sys.argv[2]))
        return 0
    if sys.argv[1:] != ["run"]:
        print("nothing to do; use: python benchmarks/judge_iterations.py run")
        return 0
    rows = []
    for name, (gpu, ms) in ITERATIONS.items():
        if "ResNet" in name and importlib.util.find_spec("timm") is None:
            print(f"{name}: not predicted, because timm is not installed")
            continue
        predicted = predict(name)
        error = round(100 * predicted / ms - 100, 1)
        rows.append({"iteration": name, "gpu": gpu, "ms": ms, "virtual_ms": round(predicted, 1)})
        print(f"{name:42s} {gpu:10s} {predicted:6.1f} ms instead of {ms:5.1f}: {error:+.1f} %")
    write_figures("clock-iterations", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
