"""Parts of CUDA that few programs use."""
