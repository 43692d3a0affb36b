"""Commands about the configuration: find it, check it, show it, edit it.

In: the options that choose files. Out: settings with their problems, as lines or JSON. All other
commands get their settings from `chosen`. It must not decide what is valid: `multitap.config` does.
"""
