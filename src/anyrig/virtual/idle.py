"""Sensor readings of an idle GPU, which virtual GPUs report because they have no sensors."""

PERCENT = 0
CELSIUS = 30
MILLIWATTS = 50_000
CLOCK_MHZ = 1410  # boost clock of an A100; `torch.cuda._sleep` uses the same clock
