"""Running a user's program in this process, and the watchers that go with it."""
