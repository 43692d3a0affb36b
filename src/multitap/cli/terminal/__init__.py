"""What commands write: words, tables, progress, JSON, TOML and files.

In: values and texts, among them those of foreign servers. Out: what a terminal, a pipe or a file
gets, without escape sequences of others. It must not know which command writes.
"""
