"""UUIDs and PCI addresses of GPUs, which PyTorch, NVML and the kernel write differently."""

from __future__ import annotations

import re

_PREFIXED = re.compile(r"(GPU|MIG)-(.+)", re.IGNORECASE)
_PREFIXES = {"gpu": "GPU-", "mig": "MIG-"}


def normalise_uuid(text: str) -> str:
    """Return a UUID as NVML writes it: ``"GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"``.

    ``str(torch.cuda.get_device_properties(0).uuid)`` has no prefix and gets ``"GPU-"``. The names
    of MIG instances keep theirs, in both forms: ``"MIG-<uuid>"`` and, from drivers before R470,
    ``"MIG-GPU-<uuid>/<GPU instance>/<compute instance>"``.
    """
    text = text.strip()
    match = _PREFIXED.fullmatch(text)
    if match is None:
        return "GPU-" + text.lower()
    prefix = _PREFIXES[match[1].lower()]
    if prefix == "MIG-" and match[2][:4].lower() == "gpu-":
        return "MIG-GPU-" + match[2][4:].lower()
    return prefix + match[2].lower()


def bare_uuid(text: str) -> str:
    """Return a UUID without its prefix, the part that PyTorch and NVML share.

    PyTorch writes the UUID of a MIG instance with the prefix of a whole GPU.
    """
    return re.sub(r"^(GPU-|MIG-(?!GPU-))", "", normalise_uuid(text))


def normalise_pci_bus_id(text: str) -> str:
    """Return a PCI address as the kernel writes it, ``"0000:3b:00.0"``.

    NVML writes ``"00000000:3B:00.0"``, and CUDA leaves out the domain on some systems.
    """
    *domain, bus, slot = text.strip().lower().split(":")
    return f"{int(domain[0], 16) if domain else 0:04x}:{bus}:{slot}"
