"""The sensors of a card that does nothing: programs log them, and a virtual GPU has none."""

PERCENT = 0
CELSIUS = 30
MILLIWATTS = 50_000
CLOCK_MHZ = 1410  # the boost clock of an A100, which torch.cuda._sleep counts with
