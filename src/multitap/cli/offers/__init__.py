"""Commands that list and use what servers offer: tools, resources and prompts.

In: a name and arguments as typed. Out: lists and results. `offer_lookup` finds the owner of a name,
in a running gateway or by starting as few servers as possible. It must not know how a server is
reached or how its answer is checked.
"""
