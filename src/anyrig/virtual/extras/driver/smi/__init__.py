"""`nvidia-smi` for virtual GPUs: the queries of scripts and users, in NVIDIA's output formats."""
