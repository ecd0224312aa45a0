"""The loss of a batch whose parts lie on several devices."""
