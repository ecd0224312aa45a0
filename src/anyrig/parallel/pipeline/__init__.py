"""One model over several devices by its layers, and the batch in micro-batches."""
