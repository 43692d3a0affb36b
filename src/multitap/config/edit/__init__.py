"""Changes to files that people wrote, with everything else left as it is.

In: what a server shall be, or which keys of a file shall change. Out: the new text of a file with
its comments, order and layout, written all at once, and what it takes to undo it. It must not know
who asks for a change, nor start anything.
"""
