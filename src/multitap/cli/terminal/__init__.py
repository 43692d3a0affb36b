"""What commands write: messages, tables, progress, JSON, TOML and files.

In: values and texts, some of them from foreign servers. Out: what a terminal, a pipe or a file
gets, without anyone else's escape sequences. It must not know which command writes.
"""
