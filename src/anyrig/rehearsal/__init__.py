"""Running an unchanged script on virtual GPUs."""
