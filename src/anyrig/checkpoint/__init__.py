"""State that survives the process: models, optimizers, loaders and random numbers."""
