"""The models and training loops of the benchmarks, and the output of their figures."""
