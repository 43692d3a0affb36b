"""The classes named by the designs Multitap grew from: thin, one file for each design.

In: calls as a seed's user writes them. Out: the hub's own answers. They must not hold logic of
their own, and nothing below imports them.
"""
