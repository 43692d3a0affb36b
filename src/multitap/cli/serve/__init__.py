"""Commands that run a gateway and look at it."""
