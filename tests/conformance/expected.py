"""What the suite may complain about, and why; an entry that it does not complain about fails."""

CLIENT = {}
"""By scenario, in every version that has it."""

GATEWAY = {}
