"""An unchanged script on GPUs that are not there."""
