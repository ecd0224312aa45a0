"""`nvidia-smi` for virtual GPUs: what scripts and people ask of it, in the shapes that they read."""
