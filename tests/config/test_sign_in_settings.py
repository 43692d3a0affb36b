import pytest

from multitap.config import HttpServer, StdioServer
from multitap.config.access import AccessSettings, OidcIssuer, RegisteredClient, SignInSettings
from multitap.config.checks import InvalidSettings
from multitap.config.models import TokenExchange

CORP = OidcIssuer(issuer="https://login.example", client_id="tap")
URL = "https://files.example/mcp"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: SignInSettings(provider="corp", scopes=("profile",)), "openid"),
        (lambda: SignInSettings(provider="corp", clients={"x": RegisteredClient()}), "redirect"),
        (lambda: AccessSettings(sign_in=SignInSettings(provider="corp")), "not in `oidc`"),
        (
            lambda: AccessSettings(
                oidc={"corp": CORP.replace(client_id=None)},
                sign_in=SignInSettings(provider="corp"),
            ),
            "client_id",
        ),
        (lambda: TokenExchange(provider="corp", kind="on-behalf-of"), "scope"),
        (lambda: TokenExchange(provider="corp", kind="id-jag"), "audience"),
        (lambda: HttpServer(url=URL, credentials="exchange"), "table `exchange`"),
        (lambda: StdioServer(command="x", credentials="exchange"), "table `exchange`"),
        (lambda: HttpServer(url=URL, exchange=TokenExchange(provider="corp")), "credentials"),
    ],
)
def test_a_mistake_is_named(make, reason):
    with pytest.raises(InvalidSettings, match=reason):
        make()


def test_what_is_right_is_accepted():
    AccessSettings(oidc={"corp": CORP}, sign_in=SignInSettings(provider="corp"))
    HttpServer(url=URL, credentials="exchange", exchange=TokenExchange(provider="corp"))
