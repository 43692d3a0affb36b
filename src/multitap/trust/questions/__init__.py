"""What servers may ask people and models: named askers, safe forms, bounded sampling.

In: a question of a server. Out: the question with its asker's name, or why it is refused. It must
not know who answers.
"""
