"""The classes named by the designs Multitap grew from: thin faces on the hub, a file for each."""
