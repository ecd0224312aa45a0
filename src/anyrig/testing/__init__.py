"""The pytest plugin: virtual GPUs for tests on nodes without a GPU. See `docs/testing.md`."""
