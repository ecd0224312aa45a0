"""Training steps whose times others published, in plain PyTorch."""
