"""One client, whichever replica it reaches: sessions, kept events, and messages between replicas.

In: a coordinator and the key that all replicas share. Out: sessions that any replica can serve,
streams that any of them can resume, and a way to bring a client's message to the replica that
waits for it. Without a cluster nothing of this exists. It must not know how clients connect.
"""
