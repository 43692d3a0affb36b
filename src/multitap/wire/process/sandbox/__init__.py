"""What a confined server may not do, enforced by the kernel: Landlock, seccomp, no privileges.

In: paths, a proxy's port and nothing else. Out: a process that can never get more. It runs in the
warden, between fork and exec, and therefore imports nothing of ours but its own siblings, by
relative names. It must not know why a path is allowed: `trust` decides that.
"""
