"""Public measurements of real GPUs, and the clock's coefficients fitted to them."""
