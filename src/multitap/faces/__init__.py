"""The classes named by the designs that Multitap grew from: thin faces on the hub, one file each."""
