"""Commands about what servers offer: tools, resources and prompts, listed and used.

In: a name and arguments as a person types them. Out: lists and results. `reaching` finds who has a
name, in a running gateway or with as few servers started as possible. It must not know how a
server is reached, nor how its answer is checked.
"""
