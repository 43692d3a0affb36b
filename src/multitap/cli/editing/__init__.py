"""Commands that change configuration files, ours and other clients', and undo changes.

In: names, settings, clients. Out: changed files, all or none, with a record for `undo`.
`edit_target` says which file a command changes, `edit_run` makes the change. It must not know how
a file is written: `multitap.config.edit` does.
"""
