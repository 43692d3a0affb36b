"""Attacks on a person who uses servers of strangers, each named after its threat."""
