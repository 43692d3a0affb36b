"""Commands about what may run, who may use what, and what was decided."""
