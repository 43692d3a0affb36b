"""The screen in the terminal, drawn with Textual; nothing else imports it.

In: a `GatewayClient` and the person's keys. Out: questions to the gateway, and commands that the
program runs as if they were typed. It must not know how a gateway works.
"""
