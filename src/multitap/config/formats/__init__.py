"""Parsers for JSON with comments, TOML and YAML that keep the position of every value.

In: the text of a file. Out: plain values with their positions, or what is wrong and where. `limits`
bounds size and depth. It must not know what the keys mean.
"""
