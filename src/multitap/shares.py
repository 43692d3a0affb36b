"""Divides limited resources fairly: sessions, streams, memory.

Each *holder* has a share of its own: the principal of a token, or an address where no tokens are
asked for.
"""

from collections.abc import Hashable

GENEROSITY = 3
"""How many times what is left for everybody else one holder may have."""


class Shares:
    """Who holds how much of one thing.

    Nobody knows how many holders will come, so none may take the last of it: a holder gets no
    more than three times what stays free. Alone, that is three quarters of everything; the next
    one gets three quarters of the rest, however much the first one would like to have.

    Args:
        most: How much there is.
        what: Its name, for messages.
    """

    __slots__ = ("held", "most", "total", "what")

    def __init__(self, most: int, what: str) -> None:
        self.held: dict[Hashable, int] = {}
        """How much each holder has of it."""
        self.most = most
        self.total = 0
        self.what = what

    def take(self, holder: Hashable, amount: int = 1) -> bool:
        """Count what a holder gets; False, and nothing is counted: it may not have it."""
        free, held = self.most - self.total, self.held.get(holder, 0) + amount
        # the last pieces are for holders that have little
        if amount > free or held > GENEROSITY * free:
            return False
        self.total += amount
        self.held[holder] = held
        return True

    def give(self, holder: Hashable, amount: int = 1) -> None:
        """Count what a holder gives back."""
        self.total -= amount
        # holders come and go by the thousand: one without anything must not be remembered
        left = self.held[holder] - amount
        if left:
            self.held[holder] = left
        else:
            del self.held[holder]

    def refusal(self, holder: Hashable) -> str:
        """Why a holder gets no more."""
        held = self.held.get(holder, 0)
        if self.total >= self.most or not held:
            return f"all {self.most} {self.what} are in use"
        return f"one client already has {held} of the {self.most} {self.what}"
