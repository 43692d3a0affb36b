"""How much a server is confined, and when it must not start without a sandbox."""

import pytest

from multitap.config.models import ServerHome, StdioServer
from multitap.sandbox.levels import decide


def decision(provenance="registry", chosen=None, unsupported=None, default="guard", **fields):
    config = StdioServer(command="x", provenance=provenance, **fields)
    return decide(config.at_home(ServerHome(level=chosen)), unsupported, default)


@pytest.mark.parametrize(
    ("provenance", "sandbox", "chosen", "level"),
    [
        ("user", "auto", None, "off"),
        ("user", "strict", None, "strict"),
        ("registry", "auto", None, "guard"),
        ("registry", "off", None, "off"),
        ("registry", "bubblewrap", None, "strict"),
        ("project", "off", None, "guard"),
        ("project", "strict", None, "strict"),
        ("project", "auto", "off", "off"),
        ("project", "strict", "guard", "guard"),
    ],
)
def test_the_author_the_entry_and_the_person_decide(provenance, sandbox, chosen, level):
    assert decision(provenance, chosen, sandbox=sandbox).level == level


def test_a_project_cannot_choose_less_than_usual():
    assert decision("project", default="strict", sandbox="guard").level == "strict"
    assert decision("registry", default="strict", sandbox="guard").level == "guard"


@pytest.mark.parametrize(
    ("provenance", "sandbox", "chosen", "starts"),
    [
        ("registry", "auto", None, True),
        ("registry", "guard", None, True),
        ("registry", "strict", None, False),
        ("registry", "bubblewrap", None, False),
        ("project", "auto", "strict", False),
        ("project", "strict", "guard", True),
        ("project", "guard", None, True),
    ],
)
def test_without_support_only_a_chosen_strict_keeps_a_server_from_starting(
    provenance, sandbox, chosen, starts
):
    confinement = decision(provenance, chosen, "no Landlock", default="strict", sandbox=sandbox)

    assert (not confinement.confined) == starts
    assert confinement.reason == "no Landlock"
