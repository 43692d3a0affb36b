"""Opens a hub from settings or from the configuration files."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from multitap.config import Settings
from multitap.hub import hub
from multitap.hub.hub import Hub
from multitap.hub.reload import open_configured, warn_of_untrusted
from multitap.tasks import InOwnTask
from multitap.upstream.connector import Dial
from multitap.upstream.handlers import Handlers
from multitap.upstream.link import Expand


@asynccontextmanager
async def open_hub(
    settings: Settings | None = None,
    *,
    handlers: Handlers = Handlers(),
    dial: Dial | None = None,
    expand: Expand | None = None,
    recall: bool = False,
) -> AsyncGenerator[Hub]:
    """Open a hub; leaving the block stops every server.

    It returns at once, while the servers start side by side: `await hub.settled()` waits for them.
    Another task may leave the block than the one that entered it.

    Without settings it reads the files that the command line reads: those that `MULTITAP_CONFIG`
    names, else the user's and the project's. It reloads them on changes, unless they say
    `auto_reload = false`. An entry that cannot be used is logged and affects only itself.

    Args:
        settings: The servers, and how to run them; by default, the configuration files'.
        handlers: Callbacks for what servers ask of the host.
        dial: Opens connections to servers, instead of pipes and sockets.
        expand: Expands variables in a server's configuration, instead of this process's.
        recall: Whether a server's last known offers are listed while it starts.

    Raises:
        ConfigError: No settings were given, and a file cannot be read.
    """
    if settings is None:
        block = open_configured(
            handlers=handlers, dial=dial, expand=expand, recall=recall, warns=False
        )
    else:
        block = hub.open_hub(settings, handlers=handlers, dial=dial, expand=expand, recall=recall)
    async with InOwnTask(block) as opened:
        # here, not in the other task: this one has the line of the program that opens it
        warn_of_untrusted(opened.withheld)
        yield opened
