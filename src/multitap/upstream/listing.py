"""The offers of one server, as last listed, and problems with the lists."""

from collections.abc import Callable, Collection

from multitap.config import ServerConfig
from multitap.events import Warned
from multitap.faults import AnswerInvalid, AnswerTimeout, RequestFailed
from multitap.upstream.availability import Availability
from multitap.upstream.offer_lists import Offers
from multitap.upstream.server_report import ServerReport
from multitap.upstream.session import Session
from multitap.wire.wire import RpcError


class Listing:
    """Owns the offers of one server, which outlive its sessions.

    Args:
        name: Which server.
        config: How many it may list, and for how long.
        known: The offers of an earlier run.
        availability: Has the session.
        report: Called with what cannot be fetched.
        on_change: Called when a connected server has other offers.
    """

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        known: Offers | None,
        *,
        availability: Availability,
        report: ServerReport,
        on_change: Callable[[], None],
    ) -> None:
        self.offers = known
        self.is_stale = known is not None
        """Whether the offers are from an earlier run or session."""
        self._name = name
        self._config = config
        self._availability = availability
        self._report = report
        self._on_change = on_change
        self._warning: str | None = None

    def expect(self, offers: Offers | None) -> None:
        """Use the offers of its predecessor until it is up itself."""
        self.offers = offers
        self.is_stale = offers is not None

    def on_connected(self, offers: Offers) -> None:
        """Use the offers that the server has just listed."""
        self.offers = offers
        self.is_stale = False

    @property
    def is_complete(self) -> bool:
        return self.offers is None or not self.offers.missing

    @property
    def warnings(self) -> list[str]:
        own = [self._warning] if self._warning else []
        own += (
            f"its {key} could not be fetched and will be requested again: {why}"
            for key, why in (self.offers or Offers()).missing.items()
        )
        return own

    async def fetch(self, session: Session, only: Collection[str] | None = None) -> Offers:
        """Fetch the lists.

        Args:
            session: The session.
            only: Which lists; the known ones stay for the others. None: all of them.
        """
        return await session.offers(
            self._config.limits.tools,
            self._config.connect_timeout,
            known=self.offers or Offers(),
            only=only,
        )

    async def refetch(self, changed: bool) -> bool:  # noqa: FBT001 - see `Refetch`
        """Fetch the offers again; returns whether all lists succeeded. Failed ones keep old offers.

        Args:
            changed: Whether any list may have changed; if not, only missing lists are fetched.
        """
        if (session := self._availability.session) is None or self.offers is None:
            return True
        whole = changed or self._warning is not None
        try:
            self.offers = await self.fetch(session, None if whole else self.offers.missing)
        except (RpcError, AnswerInvalid, AnswerTimeout, RequestFailed) as exc:
            warning = f"its changed lists cannot be fetched: {exc}"
            if warning != self._warning:  # once, however often it fails
                self._warning = warning
                self._report.tell(Warned(self._name, warning))
            return False
        self._warning = None
        self._on_change()
        return not self.offers.missing
