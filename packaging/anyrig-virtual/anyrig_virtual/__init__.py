"""The compiled libraries of anyrig's virtual GPUs, which `anyrig.virtual` finds and loads."""
