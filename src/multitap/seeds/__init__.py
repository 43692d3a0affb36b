"""The classes named in the five designs Multitap grew from: thin, one file per design.

In: calls as a user of that design writes them. Out: the hub's own answers. They must not have logic
of their own, and nothing below imports them.
"""
