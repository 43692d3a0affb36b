"""The secret by which a gateway tells local programs from confined servers.

Confined servers run as the same user, but cannot read this user's private folders, where it is.
"""

import hmac
import os
import secrets
from pathlib import Path

from multitap.errors import MultitapError
from multitap.trust.private_file import PrivateFile
from multitap.user_folders import USER_FOLDERS

_BYTES = 32
PROOF = 2 * _BYTES
"""The length of a proof."""


def prove(path: Path) -> bytes:
    """What a client sends to the control socket at `path` before anything else, as a line.

    It is good for this socket only: a false socket learns nothing that opens another one.

    Raises:
        MultitapError: The secret cannot be read, or others could have read it.
    """
    place = os.fsencode(os.path.realpath(path))
    return hmac.digest(_secret(), place, "sha256").hex().encode()


def _secret() -> bytes:
    # for the whole user, not beside the socket: the sandboxes of other hubs do not close the
    # state directory of this one
    file = PrivateFile(USER_FOLDERS.user_state_path / "gateways" / "control.key", MultitapError)
    secret = file.read()
    if secret is None or len(secret) != _BYTES:
        with file.hold_lock():  # the first of several programs creates it, the others wait for it
            secret = file.read()
            if secret is None or len(secret) != _BYTES:
                file.write(secrets.token_bytes(_BYTES))
        secret = file.read()  # again, because that checks who else could have
    if secret is None or len(secret) != _BYTES:
        raise MultitapError(f"{file.path} is damaged", hint="remove it")
    return secret
