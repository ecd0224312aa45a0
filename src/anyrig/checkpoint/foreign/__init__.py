"""Read checkpoints that other tools wrote: one file per format. `recognise.py` chooses."""
