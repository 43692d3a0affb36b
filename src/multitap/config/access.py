"""Who may use a shared gateway: identity providers, and the rules from claims to rights."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import urlsplit

from msgspec import Meta

from multitap.config.checks import ConfigModel, FieldMistake, Texts
from multitap.config.durations import PATTERN

ASYMMETRIC = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
    "Ed25519",
)  # fmt: skip
"""The algorithms of signatures that can be checked without knowing a secret."""
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # RFC 6749: it is quoted in challenges
_SPAN = {
    "anyOf": [{"minimum": 0, "type": "number"}, {"pattern": PATTERN, "type": "string"}],
}
_Text = Annotated[str, Meta(min_length=1)]
_Life = Annotated[float, Meta(ge=60, extra={"duration": True}, extra_json_schema=_SPAN)]
_Leeway = Annotated[float, Meta(ge=0, le=300, extra={"duration": True}, extra_json_schema=_SPAN)]


class OidcIssuer(ConfigModel, frozen=True, kw_only=True):
    """An identity provider whose access tokens are accepted."""

    issuer: _Text
    """Its issuer identifier, exactly as in its metadata and in the `iss` of its tokens."""
    audiences: Texts = ()
    """Values of `aud` that are accepted besides the URL of the gateway, as exact texts; one that is
    a URL of the gateway itself is accepted only there."""
    scopes: Texts = ()
    """Scopes that every token needs; clients are told to ask for them."""
    # RFC 9068: only the type tells an access token from an ID token, which the same key signs
    token_types: Texts = ("at+jwt", "application/at+jwt")
    """Values of `typ` in the header of its access tokens; `JWT` for providers that set no other,
    and an empty text for those that set none."""
    algorithms: Texts = ("RS256", "PS256", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
    """The algorithms of its signatures."""
    groups_claim: _Text = "groups"
    """The claim with a person's groups; `realm_access.roles` is within another one."""
    client_id: str | None = None
    """Our client at the provider: for introspection, and as the audience of logout tokens."""
    client_secret: str | None = None
    """Its secret; may contain `${...}`."""
    introspect: bool = False
    """Whether the provider is asked about tokens that are not JWTs (RFC 7662)."""
    leeway: _Leeway = 30.0
    """Seconds that the provider's clock may differ from ours."""
    require_dpop: bool = False
    """Whether tokens must be bound to a key (DPoP)."""

    def mistakes(self) -> Iterator[FieldMistake]:
        url = urlsplit(self.issuer)
        # RFC 8414: an issuer has neither a query nor a fragment
        if url.scheme not in {"https", "http"} or not url.netloc or url.query or url.fragment:
            yield "issuer", "not the https URL of an issuer"
        for algorithm in self.algorithms:
            if algorithm not in ASYMMETRIC:
                yield "algorithms", f"{algorithm!r} is not one of {', '.join(ASYMMETRIC)}"
        for scope in self.scopes:
            if not _SCOPE.fullmatch(scope):
                yield "scopes", f"{scope!r} is not a scope: write each one by itself"
        if self.introspect and (self.client_id is None or self.client_secret is None):
            yield "introspect", "needs `client_id` and `client_secret`"


class AccessRule(ConfigModel, frozen=True, kw_only=True):
    """What some people may do; it applies to tokens that meet all of its conditions."""

    name: _Text
    """Shown by `multitap access explain`, and recorded in the audit log."""
    issuers: Texts = ()
    """Names of providers; if empty, any."""
    groups: Texts = ()
    """One of these must be among the groups; if empty, any."""
    scopes: Texts = ()
    """The token must have all of these. Tools that only lack a scope are listed, and a call asks
    the client to get a token with it."""
    subjects: Texts = ()
    """The subject must be one of these."""
    clients: Texts = ()
    """The token must have been issued to one of these OAuth clients."""
    claims: Mapping[str, str] = {}
    """Further claims and their values; a list must contain the value."""
    profile: str | None = None
    """The profile that the tools come from."""
    allow: Texts | None = None
    """Globs over the names of tools; by default all, but none for a rule that only has `deny`."""
    deny: Texts = ()
    """Globs over the names of tools that no other rule can allow."""
    rate: str | None = None
    """Requests over time, such as `100/min`; of several rules, the largest counts, and no rate is
    the largest."""
    admin: bool = False
    """Whether they run the gateway: the web console opens for them when they sign in."""

    @property
    def granted(self) -> tuple[str, ...]:
        """Globs over the tools that it gives."""
        if self.allow is not None:
            return tuple(self.allow)
        # whoever writes a rule to forbid something does not mean to give everything else
        return () if self.deny and self.profile is None else ("*",)

    def mistakes(self) -> Iterator[FieldMistake]:
        if self.rate is not None:
            from multitap.limits import Rate  # noqa: PLC0415 - it imports the event loop

            try:
                Rate.parse(self.rate)
            except ValueError as exc:
                yield "rate", str(exc)
        for scope in self.scopes:
            if not _SCOPE.fullmatch(scope):
                yield "scopes", f"{scope!r} is not a scope: write each one by itself"


class ToolGrant(NamedTuple):
    """The tools that one rule gives: those of a profile whose names match."""

    profile: str | None = None
    allow: tuple[str, ...] = ("*",)
    scopes: tuple[str, ...] = ()
    """Scopes that the token lacks for it."""


class RegisteredClient(ConfigModel, frozen=True, kw_only=True):
    """An OAuth client that is known beforehand."""

    name: _Text | None = None
    """Shown to people; by default, its id."""
    # RFC 8252: programs listen on whatever port is free when a person logs in
    redirect_uris: Texts = ()
    """Where people are sent back to, as exact texts; the port of a loopback address is free."""
    client_secret: str | None = None
    """May contain `${...}`; without one, anybody can claim to be this client. Needed for assertions
    of the provider (ID-JAG)."""


class SignInSettings(ConfigModel, frozen=True, kw_only=True):
    """Lets clients sign people in with nothing but the URL of the gateway.

    People sign in at a provider; clients get tokens of the gateway.
    """

    provider: _Text
    """The name of the provider under `oidc`; it needs a `client_id`, with the redirect URI
    `PUBLIC_URL/authorize/callback`."""
    scopes: Texts = ("openid", "profile", "email")
    """Scopes to ask the provider for; `offline_access` is added where the provider offers it."""
    registration: bool = True
    """Whether clients may register themselves; nothing is stored for them."""
    documents: bool = True
    """Whether clients may describe themselves at an address (client id metadata documents)."""
    clients: Mapping[str, RegisteredClient] = {}
    """Clients that are known beforehand, by their ids."""
    token_life: _Life = 900.0
    """Seconds for which an access token is valid; the provider is asked again at each renewal."""
    refresh_life: _Life = 14 * 24 * 3600.0
    """Seconds after which a client that was not used has to ask the person again."""

    def mistakes(self) -> Iterator[FieldMistake]:
        if "openid" not in self.scopes:
            yield "scopes", "without `openid`, the provider does not say who signed in"
        for scope in self.scopes:
            if not _SCOPE.fullmatch(scope):
                yield "scopes", f"{scope!r} is not a scope: write each one by itself"
        for client_id, client in self.clients.items():
            if client.client_secret is None and not client.redirect_uris:
                yield "clients", f"{client_id!r} needs `redirect_uris`, or a `client_secret`"


UNUSABLE = AccessRule(name="a rule that cannot be used", deny=("*",))
"""Takes the place of a rule with mistakes, which may have been meant to forbid something."""

if TYPE_CHECKING:
    AccessRules = Sequence[AccessRule]
else:
    AccessRules = tuple[AccessRule, ...]


class AccessSettings(ConfigModel, frozen=True, kw_only=True):
    """Who may use a shared gateway, besides the holders of its own tokens."""

    oidc: Mapping[str, OidcIssuer] = {}
    """Identity providers, by a name of your own."""
    rules: AccessRules = ()
    """What people may do. Several rules together give the tools of each; a `deny` wins. Who meets
    none is refused."""
    sign_in: SignInSettings | None = None
    """Signs people in for clients that know only the URL of the gateway."""

    def mistakes(self) -> Iterator[FieldMistake]:
        issuers = [provider.issuer for provider in self.oidc.values()]
        if len({*issuers}) < len(issuers):
            yield "oidc", "two providers have the same issuer"
        if sum(provider.introspect for provider in self.oidc.values()) > 1:
            # an opaque token does not say whose it is, and each provider would learn the others'
            yield "oidc", "only one provider can have `introspect`"
        for rule in self.rules:
            for name in rule.issuers:
                if name not in self.oidc:
                    yield (
                        "rules",
                        f"{rule.name!r} names the issuer {name!r}, which is not in `oidc`",
                    )
            if rule.subjects and len(rule.issuers) != 1 and len(self.oidc) > 1:
                # a subject means nothing without its issuer: another one may give it to anybody
                yield "rules", f"{rule.name!r} names subjects, and needs one name in `issuers`"
        # several rules may have mistakes, and what takes their place has one name
        names = [rule.name for rule in self.rules if rule.name != UNUSABLE.name]
        if len({*names}) < len(names):
            yield "rules", "two rules have the same name"
        if self.sign_in is not None and (provider := self.sign_in.provider) not in self.oidc:
            yield "sign_in", f"its provider {provider!r} is not in `oidc`"
        elif self.sign_in is not None and self.oidc[self.sign_in.provider].client_id is None:
            yield "sign_in", f"the provider {self.sign_in.provider!r} needs a `client_id`"
