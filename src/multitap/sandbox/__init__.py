"""Everything about confinement: what a server may use, and how the kernel enforces it.

In: a server's configuration, its program, observed use. `levels.py` decides how much it is
confined, `plan.py` what it may use, `sandboxes.py` prepares it for a start, `egress.py` is its way
to the network, `learning.py` derives rules from what it used.

`confinement.py` (with `landlock.py` and `seccomp.py`) confines a process between fork and exec, and
`supervisor.py` (with `calling_process.py`, `supervised_files.py` and `supervised_connects.py`)
answers the calls that a confined process hands over. These and `kernel.py` run in the warden: they
import only each other, and nothing that is slow to import. It must not know hubs or gateways.
"""
