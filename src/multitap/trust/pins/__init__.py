"""What servers offered when a person relied on it: `multitap.lock`, and what differs now.

In: what servers offer, and which package each launcher started. Out: how it differs from what is
pinned, and which tools are withheld. It must not know who wants to call them.
"""
