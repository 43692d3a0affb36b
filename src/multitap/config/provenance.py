"""Who wrote a server's entry, and everything that follows from it.

The author is set once, where an entry enters: by the reader of a project's files, or by
`multitap add`. No later step raises it, and no stranger's file can claim another one.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

Provenance = Literal["user", "project", "link", "file", "pipe", "registry", "bundle"]
"""The person at this prompt, a project's files, an install link, another program's file, standard
input, a registry (also a package that the person named to `npx` or the like), a bundle."""
Level = Literal["off", "guard", "strict"]
"""How a program is confined: not at all; private places are closed; only what its rules open."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from an author."""

    author: str
    """The author in a sentence: "a project describes it"."""
    is_own: bool = False
    """Whether the person wrote it: nothing is asked, and its variables are expanded as they are.
    Of anybody else's, everything is shown and asked about before anything starts or is sent."""
    is_confined: bool = True
    """Whether its program is confined by default."""
    pin: Literal["enforce", "report"] = "enforce"
    """What happens to tools that change, by default."""
    risky_forms: Literal["refuse", "flag"] = "refuse"
    """What happens to forms that ask for secrets, by default."""
    may_loosen: bool = True
    """Whether its own entry may choose less than these defaults; the person's file may."""


STANDINGS: Mapping[Provenance, Standing] = {
    "user": Standing(
        author="you",
        is_own=True,
        is_confined=False,
        pin="report",
        risky_forms="flag",
    ),
    "project": Standing(author="a project", may_loosen=False),
    "link": Standing(author="a link"),
    "file": Standing(author="a file"),
    "pipe": Standing(author="a pasted text"),
    "registry": Standing(author="a registry"),
    "bundle": Standing(author="a bundle"),
}
