"""Changes the files of a running gateway, with the same steps as the commands."""

import shutil
import sys
from functools import partial
from hashlib import sha256
from typing import get_type_hints

import msgspec
from anyio import to_thread

from multitap.cli.change.enable import switch
from multitap.cli.change.entries import Assignment, assign, setting_edit
from multitap.cli.change.remove import remove_servers
from multitap.cli.change.rename import rename_server
from multitap.cli.configuration import load_configuration
from multitap.cli.edits import edit_target, trusting_own_edits, write_edits
from multitap.cli.options import CommonOptions, EditOptions
from multitap.cli.set_up import add
from multitap.cli.set_up.add import Addition, AddOptions
from multitap.cli.set_up.add_request import AddRequest, an_address, settle_provenance
from multitap.cli.set_up.consent import Consent
from multitap.cli.set_up.published import registry_address
from multitap.cli.set_up.search import matching, similar
from multitap.cli.set_up.trial import Trial, TrialContext, start_once
from multitap.cli.signals import run_async
from multitap.cli.terminal import Exit
from multitap.config import HttpServer, Loaded, StdioServer
from multitap.config.edit.drafts import DraftInput, ServerDraft
from multitap.control.editing import (
    AdditionInput,
    AdditionReview,
    ConfigEditor,
    EditReply,
    EditRequest,
    FoundServer,
    FoundServers,
    NewServer,
)
from multitap.errors import ConfigError, MultitapError, Unavailable, UnknownName
from multitap.published import packages
from multitap.published.registry import RegistryClient
from multitap.trust.pins import places_of

MOST_FOUND = 100
"""Servers that one search returns."""


class FileEditor(ConfigEditor):
    """Edits the files that a gateway was started with."""

    def __init__(self, options: CommonOptions) -> None:
        # a gateway must not wait for a terminal
        self._options = msgspec.structs.replace(options, asks=False)

    # in threads: these read and write files, and wait for locks
    async def switch(self, server: str, *, on: bool) -> None:
        await to_thread.run_sync(partial(switch, self._options, [server], EditOptions(), on=on))

    async def remove(self, server: str) -> None:
        await to_thread.run_sync(remove_servers, self._options, [server], EditOptions())

    async def rename(self, server: str, name: str) -> None:
        await to_thread.run_sync(rename_server, self._options, server, name, EditOptions())

    async def change_tool(
        self, server: str, tool: str, name: str | None, description: str | None
    ) -> None:
        texts = {"tool_names": name, "tool_descriptions": description}
        changes = [
            Assignment((key, tool), text or None) for key, text in texts.items() if text is not None
        ]
        await to_thread.run_sync(assign, self._options, server, changes, EditOptions())

    async def search(self, text: str) -> FoundServers:
        bundled = [*packages.servers().values()]
        if text.strip():
            bundled = matching(text) or similar(text)
        servers = [FoundServer(server.name, "catalog", server.description) for server in bundled]
        trouble = ""
        try:
            address = await to_thread.run_sync(registry_address)
            published = await RegistryClient(address).search(text) if text.strip() else []
            servers += (
                FoundServer(server.name, "registry", server.description) for server in published
            )
        except MultitapError as exc:
            # the bundled catalog needs no network, so its servers are found all the same
            trouble = str(exc)
        return FoundServers(tuple(servers[:MOST_FOUND]), trouble)

    async def review_new(self, new: NewServer) -> AdditionReview:
        draft = await self._draft(new)
        return await to_thread.run_sync(self._review, draft, new)

    async def add(self, new: NewServer, digest: str) -> str:
        draft = await self._draft(new)
        review = await to_thread.run_sync(self._review, draft, new)
        # described once more: a registry may say something else than when the person agreed
        _require_same(review, digest)
        loaded = load_configuration(self._options)
        addition = await to_thread.run_sync(self._addition, draft, new)
        target = edit_target(self._options)
        add.check_free(addition.name, loaded, target)
        trial: Trial | None = None
        if review.is_own:
            trial = await self._try(loaded, addition)
        else:
            # what others describe starts only after `enable_reviewed`, with a key from a terminal
            off = addition.config.replace(enabled=False)
            addition = msgspec.structs.replace(addition, config=off)
        trials = {} if trial is None else {addition.name: trial}
        write = partial(add.write, f"add {addition.name}", [addition], trials, target, loaded)
        await to_thread.run_sync(write)
        return addition.name

    async def review_disabled(self, server: str) -> AdditionReview:
        return await to_thread.run_sync(lambda: self._review_of(self._written(server)[1]))

    async def enable_reviewed(self, server: str, digest: str) -> None:
        loaded, addition = await to_thread.run_sync(self._written, server)
        _require_same(self._review_of(addition), digest)
        trial = await self._try(loaded, addition)
        await to_thread.run_sync(self._enable, loaded, addition, trial)

    async def _draft(self, new: NewServer) -> ServerDraft:
        """The described server.

        Raises:
            MultitapError: There is none, or it cannot be added from here.
        """
        match new.source:
            case "catalog":
                catalog = packages.servers()
                if new.what not in catalog:
                    raise UnknownName(f"the catalog has no server named {new.what!r}")
                draft = catalog[new.what].draft()
            case "registry":
                server = await RegistryClient(await to_thread.run_sync(registry_address)).server(
                    new.what
                )
                if server is None:
                    raise UnknownName(f"the registry has no server named {new.what!r}")
                draft = server.best(shutil.which)
            case "url":
                drafts = an_address(AddRequest(arguments=(new.what,)))
                if not drafts:
                    raise ConfigError(
                        f"{new.what!r} is not an address",
                        hint="expected one that starts with http:// or https://",
                    )
                draft = drafts[0]
        draft = settle_provenance(draft)
        return msgspec.structs.replace(draft, name=new.name) if new.name else draft

    def _review(self, draft: ServerDraft, new: NewServer) -> AdditionReview:
        # secrets are only named, like answers that are still missing
        secrets = {draft_input.name for draft_input in draft.inputs if draft_input.secret}
        open_answers = {name: text for name, text in new.answers.items() if name not in secrets}
        without_secrets = msgspec.structs.replace(new, answers=open_answers)
        addition = self._addition(draft, without_secrets, is_dry=True)
        add.check_name(addition, load_configuration(self._options))
        review = self._review_of(addition)
        return msgspec.structs.replace(review, inputs=tuple(map(_input, draft.inputs)))

    def _addition(self, draft: ServerDraft, new: NewServer, *, is_dry: bool = False) -> Addition:
        inputs = {name: (value,) for name, value in new.answers.items() if value}
        request = AddRequest(inputs=inputs, consent=Consent(yes=True, is_dry=is_dry))
        how = AddOptions(yes=True, dry_run=is_dry)
        return add.make_addition(draft, request, edit_target(self._options), how)

    def _review_of(self, addition: Addition) -> AdditionReview:
        lines = add.review_of(addition, load_configuration(self._options))
        return AdditionReview(
            name=addition.name,
            lines=tuple(lines),
            question=add.question_about([addition]),
            digest=sha256("\n".join(lines).encode(errors="replace")).hexdigest(),
            is_own=addition.is_own,
        )

    def _written(self, server: str) -> tuple[Loaded, Addition]:
        """The entry of a server, as if it were added now."""
        loaded = load_configuration(self._options)
        config = loaded.settings.servers.get(server)
        if not isinstance(config, StdioServer | HttpServer):
            raise UnknownName(f"no server named {server!r}")
        draft = ServerDraft(name=server, fields={}, provenance=config.provenance)
        return loaded, Addition(name=server, config=config, secrets={}, draft=draft)

    async def _try(self, loaded: Loaded, addition: Addition) -> Trial:
        context = TrialContext(addition.secrets, addition.variables)
        wait = addition.config.connect_timeout
        trial = await start_once(loaded, addition.name, addition.config, context, wait=wait)
        if trial.reason:
            hint = trial.failure.hint if trial.failure else None
            raise Unavailable(addition.name, f"it does not start: {trial.reason}", hint=hint)
        return trial

    def _enable(self, loaded: Loaded, addition: Addition, trial: Trial) -> None:
        settings = [Assignment(("enabled",), value=True)]
        confined = add.confine(addition, trial).config
        if isinstance(confined, StdioServer) and confined != addition.config:
            hosts = [*confined.sandbox_rules.hosts]
            settings.append(Assignment(("sandbox_rules", "hosts"), hosts))
        edit = setting_edit(loaded, addition.name, settings, self._options, EditOptions())
        pins = add.pins_after(places_of(loaded.search), addition.name, trial, project=False)
        with trusting_own_edits():
            write_edits(f"enable {addition.name}", [edit], pins=pins)


def edit_once(options: CommonOptions) -> int:
    """Make the change that standard input asks for, in the folder of this process."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=EditRequest)
    # only our own gateway writes to this pipe: see `ViewEditor`
    method = getattr(FileEditor(options), request.method)
    kinds = get_type_hints(getattr(ConfigEditor, request.method))
    arguments = {
        name: msgspec.convert(value, kinds[name]) for name, value in request.arguments.items()
    }

    async def edit() -> EditReply:
        try:
            return EditReply(await method(**arguments))
        except MultitapError as exc:
            return EditReply(error=str(exc), hint=exc.hint)

    sys.stdout.buffer.write(msgspec.json.encode(run_async(edit)))
    return Exit.DONE


def _require_same(review: AdditionReview, digest: str) -> None:
    if review.digest != digest:
        raise MultitapError(
            f"{review.name} is not what you were shown any more", hint="review it once more"
        )


def _input(draft_input: DraftInput) -> AdditionInput:
    return AdditionInput(
        name=draft_input.name,
        description=draft_input.description,
        secret=draft_input.secret,
        required=draft_input.required and draft_input.default is None,
        default=draft_input.default,
        choices=draft_input.choices,
    )
