"""Edits people's files and leaves everything else in them as it was.

In: what a server should be, or which keys of a file should change. Out: the new text of a file with
its comments, order and layout, written atomically, and a record to undo it. It must not know
who asks for a change, and never starts anything.
"""
