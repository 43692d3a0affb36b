"""What a confined server may not do, enforced by the kernel: Landlock, seccomp, no privileges.

In: paths, and the port of a proxy. Out: a process that can never get more. It runs in the warden,
between fork and exec, and therefore imports only its own siblings, by relative names. It must not
know why a path is allowed: `trust` decides that.
"""
