"""What commands write: messages, tables, progress, JSON, TOML and files.

In: values and texts, some of them from foreign servers. Out: text for a terminal, a pipe or a
file, without foreign escape sequences. It must not know which command writes.
"""
