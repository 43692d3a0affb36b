"""The configuration that the command line selects, and the commands that show it.

In: the options that choose files. Out: settings with their problems, as lines and as JSON.
`chosen_configuration` is how every other command gets its settings. It must not start a server, nor
decide what is valid: `multitap.config` does.
"""
