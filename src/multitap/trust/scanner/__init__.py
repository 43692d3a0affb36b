"""Finds attacks on models in what servers say: a table of rules, and how text is read."""
