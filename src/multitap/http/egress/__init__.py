"""Where confined programs may connect to: a proxy that decides, forwards and counts.

In: rules for hosts, one set for each program, known by a password. Out: what went where, and what
was refused. It must not know what a program is for.
"""
