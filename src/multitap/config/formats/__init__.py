"""Files as parsed documents whose every value knows its place.

In: the text of a file. Out: plain values and marks, or what is wrong and where. `limits` bounds
size and depth before or while it is parsed. It must not know what the keys mean.
"""
