"""Moving nested batches and modules: pinned, asynchronous, prefetched."""
