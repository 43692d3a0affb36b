"""From claims to rights: which rules apply to a token, and what they give together."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from multitap.config.access import AccessRule, AccessSettings, ToolGrant
from multitap.config.documents import is_list
from multitap.identity.access_tokens import VerifiedToken, member_at
from multitap.limits import Rate


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """What several rules give together."""

    rules: tuple[str, ...]
    """The names of the rules that apply."""
    grants: tuple[ToolGrant, ...]
    """Each gives tools."""
    locked: tuple[ToolGrant, ...] = ()
    """What a token with more scopes would give."""
    deny: tuple[str, ...] = ()
    rate: str | None = None
    is_admin: bool = False


class RuleOutcome(NamedTuple):
    """Whether a rule applies to a token, and why not."""

    rule: AccessRule
    unmet: tuple[str, ...]
    """The conditions that are not met."""
    missing_scopes: tuple[str, ...]

    @property
    def applies(self) -> bool:
        return not self.unmet and not self.missing_scopes


def judge(rules: Sequence[AccessRule], token: VerifiedToken) -> list[RuleOutcome]:
    """Every rule, and whether it applies to a token."""
    return [_judge(rule, token) for rule in rules]


def rights_of(access: AccessSettings, token: VerifiedToken) -> Rights | None:
    """What the rules give the holder of a token; None if that is nothing."""
    outcomes = judge(access.rules, token)
    applying = [outcome.rule for outcome in outcomes if outcome.applies]
    grants = [ToolGrant(rule.profile, rule.granted) for rule in applying if rule.granted]
    # part of what a client sees: a call of one makes it ask for a token with more scopes
    locked = [
        ToolGrant(outcome.rule.profile, outcome.rule.granted, outcome.missing_scopes)
        for outcome in outcomes
        if not outcome.unmet and outcome.missing_scopes and outcome.rule.granted
    ]
    is_admin = any(rule.admin for rule in applying)
    if not grants and not locked and not is_admin:
        return None
    # a rule that gives no tools, such as one that only denies, limits nothing
    rates = [rule.rate for rule in applying if rule.granted]
    return Rights(
        rules=tuple(rule.name for rule in applying),
        grants=tuple(grants),
        locked=tuple(locked),
        deny=tuple(glob for rule in applying for glob in rule.deny),
        # a rule without a rate sets no limit, which is more than any
        rate=None
        if None in rates
        else max((rate for rate in rates if rate), key=_speed, default=None),
        is_admin=is_admin,
    )


def _judge(rule: AccessRule, token: VerifiedToken) -> RuleOutcome:
    unmet: list[str] = []
    if rule.issuers and token.provider not in rule.issuers:
        unmet.append(f"the issuer is not one of: {', '.join(rule.issuers)}")
    if rule.groups and token.groups.isdisjoint(rule.groups):
        unmet.append(f"not in one of the groups: {', '.join(rule.groups)}")
    # a machine has no subject: a rule for people must not admit a client with the same name
    if rule.subjects and token.subject not in rule.subjects:
        unmet.append("the subject is not one of those listed")
    if rule.clients and token.client not in rule.clients:
        unmet.append(f"the client is not one of: {', '.join(rule.clients)}")
    for name, expected in rule.claims.items():
        value = member_at(token.claims, name)
        if value != expected and not (is_list(value) and expected in value):
            unmet.append(f"the claim {name!r} is another one")
    missing = tuple(scope for scope in rule.scopes if scope not in token.scopes)
    return RuleOutcome(rule, tuple(unmet), missing)


def _speed(rate: str) -> float:
    requests, seconds = Rate.parse(rate)
    return requests / seconds
