"""How the calls of a spread module are computed: one engine for each plan and place."""
