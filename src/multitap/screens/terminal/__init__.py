"""The terminal screen, drawn with Textual; nothing else imports it.

In: a `Control` and the person's keys. Out: requests to the gateway, and commands that the
program runs as if they had been typed. It must not know how a gateway works.
"""
