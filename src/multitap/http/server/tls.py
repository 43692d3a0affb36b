"""TLS of a server: its certificate, which may change while it runs, and those of clients."""

import logging
import ssl
from pathlib import Path

import anyio
import msgspec

from multitap.errors import ConfigError
from multitap.files import Stamp, file_stamp

logger = logging.getLogger(__name__)

HANDSHAKE = 10.0
"""Seconds for a client to complete the TLS handshake."""
LOOK = 1.0
"""Seconds between two looks at the files; a look takes microseconds, on every file system."""


class TlsFiles(msgspec.Struct, frozen=True):
    """The files that TLS is made of, in PEM format."""

    cert: Path
    """The certificate, followed by those of the authorities between it and a known one."""
    key: Path | None = None
    """Its key, without a passphrase; None if it is in the same file."""
    client_ca: Path | None = None
    """The authorities whose certificates clients must have; None if they need none."""


class ServerTls:
    """The TLS of a running server.

    Raises:
        ConfigError: A file cannot be used.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamps = self._look()
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.set_alpn_protocols(["http/1.1"])
        _load(self.context, files)

    async def follow(self) -> None:
        """Use changed files for new connections, until cancelled."""
        while True:
            await anyio.sleep(LOOK)
            if (stamps := self._look()) == self._stamps:
                continue
            try:
                # first: a context that has failed halfway has a certificate without its key
                _load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), self._files)
                _load(self.context, self._files)
            except ConfigError as exc:
                logger.warning("the changed certificate is not used: %s", exc)
            else:
                logger.info("the changed certificate is used")
            self._stamps = stamps

    def _look(self) -> tuple[Stamp, ...]:
        paths = (self._files.cert, self._files.key, self._files.client_ca)
        return tuple(file_stamp(path) for path in paths if path is not None)


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    try:
        # an empty password, or OpenSSL would ask for one at the terminal
        context.load_cert_chain(files.cert, files.key, password="")
    except (OSError, ValueError) as exc:
        paths = str(files.cert) if files.key is None else f"{files.cert} and {files.key}"
        raise ConfigError(
            f"the certificate in {paths} cannot be used: {_reason(exc)}",
            hint="`--cert` and `--key` take PEM files; the key must be without a passphrase",
        ) from None
    if files.client_ca is None:
        return
    try:
        context.load_verify_locations(files.client_ca)
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"the authorities in {files.client_ca} cannot be used: {_reason(exc)}",
            hint="`--client-ca` takes a PEM file with certificates",
        ) from None
    context.verify_mode = ssl.CERT_REQUIRED


def _reason(exc: Exception) -> str:
    if isinstance(exc, ssl.SSLError):
        return (exc.reason or "it is not a PEM file").replace("_", " ").lower()
    return exc.strerror or str(exc) if isinstance(exc, OSError) else str(exc)
