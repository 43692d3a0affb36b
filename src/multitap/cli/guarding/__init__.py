"""Commands about what may run, who may use what, and what was decided.

In: projects, secrets, pins, tokens, sandboxes, policies and the audit log. Out: their state, and a
user's changes to it. It must not decide anything: `multitap.trust` does.
"""
