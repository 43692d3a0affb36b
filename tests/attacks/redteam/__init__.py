"""A red team: hostile parts put together at random, against the real commands and a real gateway.

`machine` is what is attacked, with things to steal and places where they would turn up. Each
`…_attacks` module has the strategies that make cases, and what they do with them. `campaign` runs
them: for minutes with `make attack`, for seconds with `make test`.
"""
