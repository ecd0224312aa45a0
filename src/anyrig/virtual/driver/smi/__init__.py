"""`nvidia-smi` for virtual GPUs: what scripts and people ask, in the shapes they read."""
