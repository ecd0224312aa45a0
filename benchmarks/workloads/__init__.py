"""What the benchmarks of data parallelism train, and how a training is measured."""
