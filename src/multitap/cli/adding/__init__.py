"""Commands that find servers and add them.

In: a server's command, its URL, a line or a snippet to paste, or a name.
Out: a server that was started once, and its entry in a file. `add_words` and its neighbours find
out what was meant, `add_command` does the rest. It must not know how files are edited.
"""
