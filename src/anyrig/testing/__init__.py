"""The pytest plugin: CUDA devices for tests, on machines that have none. See `docs/testing.md`."""
