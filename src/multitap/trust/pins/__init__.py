"""Pinned definitions of what servers offer (`multitap.lock`), and how the current ones differ.

In: what servers offer, and which package each launcher started. Out: how it differs from what is
pinned, and which tools are withheld. It must not know who wants to call them.
"""
