"""What a server of the zoo noted in its ZOO_DIR, for tests to count."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Ledger:
    """The notes of one server over all its starts; give each server a folder of its own."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        """What to add to the server's environment."""
        return {"ZOO_DIR": str(self.folder)}

    @property
    def pids(self) -> list[int]:
        """The process of each start, the first one first."""
        return [int(line.split()[0]) for line in self._lines("starts")]

    @property
    def starts(self) -> list[float]:
        """When it was started, in seconds since the epoch."""
        return [float(line.split()[1]) for line in self._lines("starts")]

    @property
    def modes(self) -> list[str]:
        """The mode of each start, for servers that share a folder."""
        return [line.split()[2] for line in self._lines("starts")]

    @property
    def startup(self) -> list[tuple[str, str]]:
        """`begin` and `ready` of each `busy_start`, with its name."""
        return [(line.split()[0], line.split()[1]) for line in self._lines("startup")]

    @property
    def calls(self) -> list[str]:
        """The tools that were called and so may have had their effect."""
        return [line.split()[0] for line in self._lines("calls")]

    @property
    def methods(self) -> list[str]:
        """The methods of all requests and notifications that arrived."""
        return self._lines("methods")

    @property
    def cancelled(self) -> list[str]:
        """The ids of the requests that the client cancelled."""
        return self._lines("cancelled")

    @property
    def given_up(self) -> list[str]:
        """The methods of those that it still worked on, where it notes them."""
        return self._lines("given_up")

    @property
    def children(self) -> list[int]:
        """The processes that it left to themselves."""
        return [int(line) for line in self._lines("children")]

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []
