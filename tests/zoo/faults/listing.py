"""Servers whose lists are broken, endless or full of oddities."""

from tests.zoo.honest import INTERNAL, Honest
from tests.zoo.tools import echo

OBJECT = {"type": "object"}


def entry(name, **changes):
    return {**echo.definition, "name": name, **changes}


class More(Honest):
    """The honest list and then something else."""

    def definitions(self):
        return [*super().definitions(), *self.more()]

    def more(self):
        raise NotImplementedError


class ToolsBadEntries(More, mode="tools_bad_entries"):
    def definitions(self):
        good = super(More, self).definitions()
        return [*self.more(), *good]

    def more(self):
        return [
            None,
            42,
            "echo",
            [],
            {},
            {"name": 5, "inputSchema": OBJECT},
            {"name": None, "inputSchema": OBJECT},
            {"name": "no_schema"},
            {"name": "schema_null", "inputSchema": None},
            {"name": "schema_list", "inputSchema": []},
            {"name": "schema_text", "inputSchema": "object"},
            entry("", description="has no name"),
            entry("odd_description", description=7),
            entry("odd_annotations", annotations="read only"),
            entry("odd_output", outputSchema="text"),
        ]


class ToolsBadSchema(More, mode="tools_bad_schema"):
    def more(self):
        properties = {
            "unknown_type": {"a": {"type": "thing"}},
            "bad_pattern": {"a": {"type": "string", "pattern": "(unclosed"}},
            "dangling_ref": {"a": {"$ref": "#/$defs/nowhere"}},
            "properties_list": ["a"],
            "negative_length": {"a": {"type": "string", "minLength": -1}},
        }
        return [
            *(
                entry(name, inputSchema={"type": "object", "properties": value})
                for name, value in properties.items()
            ),
            entry("root_array", inputSchema={"type": "array"}),
            entry("required_text", inputSchema={"type": "object", "required": "a"}),
        ]


class ToolsDuplicate(More, mode="tools_duplicate"):
    def more(self):
        return [entry("echo", description="the second of its name"), entry("echo")]


class Tools10k(More, mode="tools_10k"):
    def more(self):
        return [entry(f"tool_{number}") for number in range(self.option("count", 10_000))]


class Schemas357kb(More, mode="357kb_schemas"):
    """As large as the largest list seen in the field: 47 tools."""

    def more(self):
        described = {"type": "string", "description": "What to look for. " * 20}
        properties = {f"field_{number}": described for number in range(18)}
        schema = {"type": "object", "properties": properties}
        return [entry(f"wide_{number}", inputSchema=schema) for number in range(47)]


class VeryLongToolNames(More, mode="very_long_tool_names"):
    def __init__(self, options):
        super().__init__(options)
        for end in ("_a", "_b"):
            name = "n" * 300 + end
            self.tools[name] = echo.renamed(name)

    def more(self):
        return []


class UnicodeNames(VeryLongToolNames, mode="unicode_names"):
    def __init__(self, options):
        Honest.__init__(self, options)
        names = ("größe", "検索", "🦓", "a b", "a/b", "a:b", "a\nb", "..", "é", "e\u0301", "A", "a")
        for name in names:
            self.tools[name] = echo.renamed(name)


class Paged(Honest, mode="paged"):
    """Gives its list in honest pages."""

    size = 4

    def on_tools_list(self, request):
        start = self.position(request.params.get("cursor"))
        page = {"tools": self.definitions()[start : start + self.size]}
        if start + self.size < len(self.definitions()):
            page["nextCursor"] = self.cursor(start + self.size)
        self.send_page(request, page)

    def position(self, cursor):
        return int(cursor or 0)

    def cursor(self, position):
        return str(position)

    def send_page(self, request, page):
        request.answer(page)


class SlowPages(Paged, mode="slow_pages"):
    def send_page(self, request, page):
        request.later(self.option("seconds", 0.1), request.answer, page)


class CursorEmptyString(Paged, mode="cursor_empty_string"):
    """The cursor to the second and last page is the empty string."""

    @property
    def size(self):
        return len(self.tools) // 2 + 1

    def position(self, cursor):
        return 0 if cursor is None else self.size

    def cursor(self, _position):
        return ""


class CursorLoop(Honest, mode="cursor_loop"):
    def on_tools_list(self, request):
        following = {None: "a", "a": "b", "b": "a"}[request.params.get("cursor")]
        request.answer({"tools": self.definitions(), "nextCursor": following})


class CursorEndless(Honest, mode="cursor_endless"):
    """Every page leads to another with one new tool."""

    def on_tools_list(self, request):
        number = int(request.params.get("cursor") or 0)
        more = [entry(f"page_{number}")] if number else self.definitions()
        request.answer({"tools": more, "nextCursor": str(number + 1)})


class CursorWrongType(Honest, mode="cursor_wrong_type"):
    def on_tools_list(self, request):
        request.answer({"tools": self.definitions(), "nextCursor": 5})


class ListError(Honest, mode="list_error"):
    def on_tools_list(self, request):
        request.fail(INTERNAL, "the index is being rebuilt")


class ListNever(Honest, mode="list_never"):
    def on_tools_list(self, request):
        """Leaves the client waiting."""


class ListWrongShape(Honest, mode="list_wrong_shape"):
    def on_tools_list(self, request):
        request.answer({"tools": {"echo": echo.definition}})


class ListMissing(Honest, mode="list_missing"):
    def on_tools_list(self, request):
        request.answer({})


class ListErrorLater(Honest, mode="list_error_later"):
    """Lists once; from `fault` on the list is said to have changed and cannot be read."""

    broken = False

    def on_tools_list(self, request):
        if self.broken:
            request.fail(INTERNAL, "the index is being rebuilt")
        else:
            super().on_tools_list(request)

    def fault(self, request):
        self.broken = True
        self.tools_changed()
        super().fault(request)


class OtherListsFail(Honest, mode="other_lists_fail"):
    """Has tools, and claims resources and prompts that it cannot list."""

    def on_resources_list(self, request):
        request.fail(INTERNAL, "no storage")

    on_resources_templates_list = on_prompts_list = on_resources_list


class PromptsNever(Honest, mode="prompts_never"):
    def on_prompts_list(self, request):
        """Leaves the client waiting."""


class PromptsEveryOther(Honest, mode="prompts_every_other"):
    """Answers every second request for its prompts; `fault` says that lists changed."""

    requests_for_prompts = 0

    def on_prompts_list(self, request):
        self.requests_for_prompts += 1
        if self.requests_for_prompts % 2 == 0:
            super().on_prompts_list(request)

    def fault(self, request):
        self.tools_changed()
        super().fault(request)


class ListenRefused(Honest, mode="listen_refused"):
    """Claims changing lists, and offers no way to hear of changes."""

    era = "stateless"

    def on_subscriptions_listen(self, request):
        request.fail(INTERNAL, "too many streams")


class ListenSilent(Honest, mode="listen_silent"):
    era = "stateless"

    def on_subscriptions_listen(self, request):
        """Leaves the client waiting for the acknowledgement."""


class ToolsOnly(Honest, mode="tools_only"):
    """Declares tools and nothing else, and refuses every other method."""

    def capabilities(self):
        return {"tools": {}}

    def asked(self, request):
        if request.method.startswith(("resources/", "prompts/", "completion/", "logging/")):
            request.fail(-32601, "Method not found", request.method)
        else:
            super().asked(request)
