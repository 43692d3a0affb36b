"""`multitap access`: who may use a shared gateway, why, and who may not any more."""

import hashlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from multitap.cli.configuration import load_configuration
from multitap.cli.options import CommandGroup, CommonOptions, config_options, json_option
from multitap.cli.signals import run_async
from multitap.cli.terminal import Exit, note, say, say_json, table
from multitap.cli.trust.access_check import check_access
from multitap.config import Loaded
from multitap.config.variables import expand_access
from multitap.errors import ConfigError, MultitapError, UnknownName, counted, quoted
from multitap.identity.access_tokens import ProviderDown, TokenRefused, VerifiedToken, is_jwt
from multitap.identity.people import People, PersonRecord, Revocation, Revocations, as_token
from multitap.identity.rights import RuleOutcome, judge, rights_of
from multitap.identity.verifier import Verifier
from multitap.principal import Person
from multitap.trust.personal_vault import PersonalVault
from multitap.trust.tokens import PREFIX, AccessTokens, parts

_COLUMNS = ("PERSON", "NAME", "STATE", "RULES", "CLIENTS", "ACCOUNTS", "LAST USE")
_RULE_COLUMNS = ("RULE", "APPLIES", "GIVES", "WHY NOT")
_MACHINE = "(machine)"


@click.group(cls=CommandGroup)
def access() -> None:
    """Show who may use a shared gateway, and why; revoke access"""


access.add_command(check_access)


@access.command("list")
@json_option
def list_people(*, as_json: bool) -> int:
    """List the people who signed in with an identity provider, most recent first"""
    people, accounts = People(), PersonalVault().servers_of_all()
    seen, revocations = people.all(), people.revocations()
    if as_json:
        say_json(
            [
                {**_facts(person, revocations), "accounts": accounts.get(_owner(person), ())}
                for person in seen
            ]
        )
    elif not seen:
        note(
            "nobody has signed in with an identity provider yet; `multitap token list` shows tokens"
        )
    else:
        table(_COLUMNS, [_row(person, revocations, accounts) for person in seen])
    return Exit.DONE


@access.command("explain")
@click.argument("who", metavar="TOKEN|USER")
@config_options
@json_option
def explain_access(options: CommonOptions, who: str, *, as_json: bool) -> int:
    """Show which rules apply to a token or a person, and what they give

    For a person, their last token counts. `-` reads a token from standard input, so that it does
    not appear in the history of your shell.
    """
    who = sys.stdin.readline().strip() if who == "-" else who
    loaded = load_configuration(options)
    if who.startswith(f"{PREFIX}_"):
        return _explain_own(who, as_json=as_json)
    try:
        token = _token(loaded, who)
    except TokenRefused as exc:
        say_json({"admitted": False, "reason": str(exc)}) if as_json else say(f"refused: {exc}")
        return Exit.FAILED
    return _explain(loaded, token, as_json=as_json)


@access.command("revoke")
@click.argument("who", metavar="TOKEN|USER")
@click.option("--undo", is_flag=True, help="Let the person come back")
@click.option("--forget", is_flag=True, help="Delete the person's accounts at servers, too")
@config_options
def revoke_access(options: CommonOptions, who: str, *, undo: bool, forget: bool) -> int:
    """Refuse a person, or one token, from now on

    Running gateways end their sessions, streams and calls within a second. A person stays out, also
    with new tokens, until `--undo`. With `--forget`, the other replicas of a cluster delete the
    person's accounts as well.
    """
    who = sys.stdin.readline().strip() if who == "-" else who
    now, people = time.time(), People()
    if who.startswith(f"{PREFIX}_"):
        bearer = parts(who.encode())
        for token in AccessTokens().revoke(who if bearer is None else bearer[0]):
            note(f"revoked {token.name!r} with the id {token.id}")
        return Exit.DONE
    if is_jwt(who):
        digest = hashlib.sha256(who.encode()).hexdigest()
        # by its hash: a reader of the record must not get a token
        people.decide(Revocation(kind="token", at=now, digest=digest))
        note("revoked this token; new ones of the same person are accepted")
        return Exit.DONE
    person = _person(people, load_configuration(options), who)
    people.revoke(person, undo=undo, forget=forget)
    note(f"{person.label} may come back" if undo else f"revoked {person.label}, with all tokens")
    if forget:
        # a machine has no subject, and no accounts
        count = PersonalVault().remove_person(_owner(person)) if person.subject else 0
        note(f"deleted {counted(count, 'account')}")
    return Exit.DONE


def _person(people: People, loaded: Loaded, who: str) -> PersonRecord:
    """A person who was here, or the one that `PROVIDER:SUBJECT` names."""
    try:
        return people.find(who)
    except UnknownName:
        name, _, subject = who.partition(":")
        provider = loaded.settings.access.oidc.get(name)
        if provider is None or not subject:
            raise
        return PersonRecord(provider=name, issuer=provider.issuer, subject=subject)


def _token(loaded: Loaded, who: str) -> VerifiedToken:
    """What is known about a person, or what its provider says about a token.

    Raises:
        TokenRefused: The token is not valid.
        UnknownName: There is no such person.
    """
    settings = loaded.settings.access
    if not is_jwt(who):
        try:
            return as_token(People().find(who))
        except UnknownName:
            if not any(provider.introspect for provider in settings.oidc.values()):
                raise  # or it is an opaque token, about which a provider can be asked
    if not settings.oidc:
        raise ConfigError("there is no identity provider", hint="[access.oidc.NAME] describes one")
    from multitap.gateway.fronts.resource_server import ResourceServer  # noqa: PLC0415 - rarely needed

    server = ResourceServer(
        loaded.settings.serve.public_url, lambda: settings, lambda: loaded.settings.profiles
    )
    resources = [b"/mcp", b"/sse", *(f"/mcp/{name}".encode() for name in loaded.settings.profiles)]
    audiences = [*map(server.url_of, resources)]
    verifier = Verifier(expand_access(settings, loaded.scope))
    verifier.public_url = server.public_url

    async def verify() -> VerifiedToken:
        try:
            token = await verifier.verify(who, audiences)
        except ProviderDown as exc:
            raise MultitapError(str(exc)) from None
        digest = hashlib.sha256(who.encode()).hexdigest()
        if (reason := verifier.revocations.refusal(token, digest)) is not None:
            raise TokenRefused(reason)
        return token

    return run_async(verify)


def _explain(loaded: Loaded, token: VerifiedToken, *, as_json: bool) -> int:
    settings = loaded.settings.access
    outcomes, rights = judge(settings.rules, token), rights_of(settings, token)
    is_out = People().revocations().is_blocked(token.issuer, token.subject, token.client)
    is_admitted = rights is not None and not is_out
    if as_json:
        say_json(
            {
                "admitted": is_admitted,
                "revoked": is_out,
                "provider": token.provider,
                "issuer": token.issuer,
                "subject": token.subject,
                "client": token.client,
                "is_machine": token.is_machine,
                "groups": sorted(token.groups),
                "scopes": sorted(token.scopes),
                "rights": None if rights is None else msgspec.to_builtins(rights),
                "rules": [_outcome(outcome) for outcome in outcomes],
            }
        )
        return Exit.DONE if is_admitted else Exit.FAILED
    kind = "machine" if token.is_machine else "person"
    say(f"{kind} {token.subject or token.client} of {token.provider}, with {token.client or '?'}")
    say(f"groups: {', '.join(sorted(token.groups)) or '-'}")
    say(f"scopes: {', '.join(sorted(token.scopes)) or '-'}")
    table(_RULE_COLUMNS, [_rule_row(outcome) for outcome in outcomes])
    if is_out:
        say("refused: revoked; `multitap access revoke --undo` lets them come back")
    elif rights is None:
        say("refused: no rule gives anything")
    else:
        denied = f", without {', '.join(rights.deny)}" if rights.deny else ""
        limit = f", at most {rights.rate}" if rights.rate else ""
        say(f"admitted by {', '.join(rights.rules) or 'more scopes'}{denied}{limit}")
    return Exit.DONE if is_admitted else Exit.FAILED


def _explain_own(text: str, *, as_json: bool) -> int:
    """Explain one of our own tokens, by its record."""
    bearer = parts(text.encode())
    token = next(
        (token for token in AccessTokens().all() if bearer is not None and token.id == bearer[0]),
        None,
    )
    if token is None or bearer is None or not token.opens_with(bearer[1]):
        # the prefix and the id; the secret comes after them
        raise UnknownName(f"there is no such token: {quoted(text[:17])}…")
    state = token.state(time.time())
    facts: dict[str, Any] = {
        "admitted": state == "active",
        "token": token.name,
        "id": token.id,
        "state": state,
        "profile": token.profile,
        "allow": token.allow,
        "rate": token.rate,
    }
    if as_json:
        say_json(facts)
    else:
        tools = ", ".join(token.allow) or "all tools"
        say(f"our own token {token.name!r} ({token.id}) is {state}: {tools}")
    return Exit.DONE if state == "active" else Exit.FAILED


def _outcome(outcome: RuleOutcome) -> dict[str, Any]:
    return {
        "rule": outcome.rule.name,
        "applies": outcome.applies,
        "unmet": outcome.unmet,
        "missing_scopes": outcome.missing_scopes,
    }


def _rule_row(outcome: RuleOutcome) -> tuple[str, ...]:
    rule = outcome.rule
    gives = [f"profile {rule.profile}"] if rule.profile else []
    gives += [f"tools {', '.join(rule.granted)}"] if rule.granted else []
    gives += [f"not {', '.join(rule.deny)}"] if rule.deny else []
    gives += [rule.rate] if rule.rate else []
    gives += ["admin"] if rule.admin else []
    missing = outcome.missing_scopes
    why_not = [*outcome.unmet, *([f"lacks the scope {' '.join(missing)}"] if missing else [])]
    return (rule.name, "yes" if outcome.applies else "no", "; ".join(gives), "; ".join(why_not))


def _facts(person: PersonRecord, revocations: Revocations) -> dict[str, Any]:
    return {
        "person": person.label,
        "provider": person.provider,
        "issuer": person.issuer,
        "subject": person.subject,
        "is_machine": not person.subject,
        "name": person.name,
        "state": _state(person, revocations),
        "rules": person.rules,
        "groups": person.groups,
        "clients": person.clients,
        "first_use": person.first_use,
        "last_use": person.last_use,
    }


def _owner(person: PersonRecord) -> Person:
    return Person(person.issuer, person.subject)


def _row(
    person: PersonRecord, revocations: Revocations, accounts: Mapping[Person, Sequence[str]]
) -> tuple[str, ...]:
    return (
        person.label,
        person.name or ("-" if person.subject else _MACHINE),
        _state(person, revocations),
        ", ".join(person.rules) or "-",
        ", ".join(person.clients),
        ", ".join(accounts.get(_owner(person), ())) or "-",
        time.strftime("%Y-%m-%d %H:%M", time.localtime(person.last_use)),
    )


def _state(person: PersonRecord, revocations: Revocations) -> str:
    return "revoked" if revocations.refuses_person(person) else "active"
