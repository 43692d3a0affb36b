"""The last lines that a failed server wrote, for a person who has no other log of it."""

from multitap.cli.terminal.output import note

_SHOWN = 8


def show_last_lines(stderr: str) -> None:
    """Quote them, without npm's advertising."""
    lines = [line for line in stderr.strip().splitlines() if not line.startswith("npm notice")]
    for line in lines[-_SHOWN:]:
        note(f"  | {line}")
