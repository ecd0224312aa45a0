"""The sensors of a card that does nothing. Programs log them, and a virtual GPU has none of its own."""

PERCENT = 0
CELSIUS = 30
MILLIWATTS = 50_000
CLOCK_MHZ = 1410  # the boost clock of an A100, which torch.cuda._sleep counts with
