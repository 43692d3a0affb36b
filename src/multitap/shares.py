"""Divides limited resources fairly: sessions, streams, memory.

Each *holder* has its own share: the principal of a token, or an address if no tokens are required.
"""

from collections.abc import Hashable

GENEROSITY = 3
"""How many times the remaining free amount one holder may have."""


class Shares:
    """How much of one resource each holder has.

    The number of holders is unknown, so none may take the last of it: a holder gets no
    more than three times what stays free. Alone, that is three quarters of everything; the next
    one gets three quarters of the rest, however much the first one wants.
    """

    __slots__ = ("held", "most", "total", "what")

    def __init__(self, most: int, what: str) -> None:
        self.held: dict[Hashable, int] = {}
        """The amount that each holder has."""
        self.most = most
        self.total = 0
        self.what = what

    def take(self, holder: Hashable, amount: int = 1) -> bool:
        """Give a holder this amount; False, with nothing counted, if that exceeds its share."""
        free, held = self.most - self.total, self.held.get(holder, 0) + amount
        # the last pieces are for holders that have little
        if amount > free or held > GENEROSITY * free:
            return False
        self.total += amount
        self.held[holder] = held
        return True

    def replace(self, holder: Hashable) -> None:
        """Give a holder one piece in place of one that was just taken back from any holder."""
        self.total += 1
        self.held[holder] = self.held.get(holder, 0) + 1

    def give(self, holder: Hashable, amount: int = 1) -> None:
        """Take back an amount from a holder."""
        self.total -= amount
        # there may be thousands of holders: those without anything are forgotten
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
