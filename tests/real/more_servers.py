"""Real servers that need no key, and what to ask them whose answer is always the same."""

from dataclasses import dataclass
from functools import partial

from tests.real.conftest import program

OLD_SDK = ("--with", "mcp<2")
"""For servers that do not say that they need it."""


@dataclass(frozen=True)
class Real:
    """One of them."""

    fetch: list[str]
    """Does nothing but fill a cache."""
    entry: dict
    calls: list[tuple[str, dict]]


def _npx(package, *args, calls):
    npx = program("npx")
    entry = {"command": npx, "args": ["-y", package, *args]}
    return Real([npx, "-y", "-p", package, "-c", "true"], entry, calls)


def _uvx(package, *args, calls, extra=(), script=None, env=None):
    uvx = program("uvx")
    entry = {"command": uvx, "args": [*extra, "--from", package, script or package, *args]}
    fetch = [uvx, *extra, "--from", package, "python", "-c", ""]
    return Real(fetch, entry | ({"env": env} if env else {}), calls)


def real_servers(place):
    """By name; all that they work on is in `place`."""
    old = partial(_uvx, extra=OLD_SDK)
    note, book, letter = f"{place}/note.txt", f"{place}/book.xlsx", f"{place}/letter.docx"
    thought = {"thought": "so", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
    allowed = {"ALLOWED_DIR": str(place), "ALLOWED_COMMANDS": "cat,ls", "ALLOWED_FLAGS": "-l"}
    return {
        "sequential": _npx(
            "@modelcontextprotocol/server-sequential-thinking",
            calls=[
                ("sequentialthinking", thought),
                ("sequentialthinking", {**thought, "thoughtNumber": "two"}),
                ("sequentialthinking", {**thought, "nextThoughtNeeded": "true"}),
                ("sequentialthinking", {}),
            ],
        ),
        "runner": _npx(
            "mcp-server-code-runner",
            calls=[
                ("run-code", {"code": "print(6 * 7)", "languageId": "python"}),
                ("run-code", {"code": "print(6 * 7)", "languageId": "none"}),
                ("run-code", {"code": 5}),
            ],
        ),
        "pdf": _npx(
            "@modelcontextprotocol/server-pdf",
            "--stdio",
            calls=[
                # `read_pdf_bytes` is for its page only: clients without pages are not offered it
                ("list_pdfs", {}),
                ("interact", {"viewUUID": "none", "action": "navigate", "page": "1"}),
            ],
        ),
        "kubernetes": _npx(
            "mcp-server-kubernetes",
            calls=[
                ("ping", {}),
                ("kubectl_get", {"resourceType": 5}),
                ("stop_port_forward", {"id": "none"}),
                ("kubectl_scale", {"name": "x", "replicas": "many"}),
            ],
        ),
        "playwright": _npx(
            "@playwright/mcp",
            calls=[("browser_close", {}), ("browser_tabs", {"action": "none"})],
        ),
        "mui": _npx("@mui/mcp", calls=[("fetchDocs", {"urls": "none"}), ("fetchDocs", {})]),
        "fetch": _uvx(
            "mcp-server-fetch",
            "--ignore-robots-txt",
            calls=[
                ("fetch", {"url": "http://127.0.0.1:9/none"}),
                ("fetch", {"url": 5}),
                ("fetch", {"url": "http://127.0.0.1:9/none", "max_length": "ten"}),
            ],
        ),
        "sqlite": old(
            "mcp-server-sqlite",
            "--db-path",
            f"{place}/some.db",
            calls=[
                ("create_table", {"query": "CREATE TABLE t (a INTEGER, b TEXT)"}),
                ("write_query", {"query": "INSERT INTO t VALUES (1, 'ä')"}),
                ("read_query", {"query": "SELECT * FROM t"}),
                ("read_query", {"query": "DROP TABLE t"}),
                ("describe_table", {"table_name": "t"}),
                ("list_tables", {"more": None}),
                ("read_query", {}),
            ],
        ),
        "calculator": _uvx(
            "mcp-server-calculator",
            calls=[
                ("calculate", {"expression": "2 + 40"}),
                ("calculate", {"expression": "1 / 0"}),
                ("calculate", {"expression": 42}),
            ],
        ),
        "cli": old(
            "cli-mcp-server",
            env=allowed,
            calls=[
                ("run_command", {"command": "cat note.txt"}),
                ("run_command", {"command": "rm note.txt"}),
                ("show_security_rules", {}),
            ],
        ),
        "editor": old(
            "mcp-text-editor",
            calls=[
                ("get_text_file_contents", {"files": [{"file_path": note, "ranges": []}]}),
                ("get_text_file_contents", {"files": note}),
                (
                    "get_text_file_contents",
                    {"files": [{"file_path": note, "ranges": [{"start": 1, "end": 1}]}]},
                ),
            ],
        ),
        "sitter": old(
            "mcp-server-tree-sitter",
            calls=[
                ("list_languages", {}),
                ("list_files", {"project": "none"}),
                ("register_project_tool", {"path": "/nowhere"}),
            ],
        ),
        "excel": _uvx(
            "excel-mcp-server",
            "stdio",
            calls=[
                ("create_workbook", {"path": book}),
                ("create_workbook", {"path": book, "overwrite": "no"}),
                ("create_workbook", {}),
            ],
        ),
        "word": _uvx(
            "office-word-mcp-server",
            script="word_mcp_server",
            calls=[
                ("create_document", {"filename": letter, "title": "Letter"}),
                ("add_heading", {"filename": letter, "text": "Dear Ada", "level": "1"}),
                ("add_paragraph", {"filename": letter, "text": "Hello"}),
                ("get_document_text", {"filename": letter}),
                ("get_document_text", {"filename": f"{place}/none.docx"}),
            ],
        ),
        "powerpoint": old(
            "office-powerpoint-mcp-server",
            script="ppt_mcp_server",
            calls=[
                ("create_presentation", {"id": "talk"}),
                ("get_presentation_info", {"presentation_id": "talk"}),
                ("get_presentation_info", {"presentation_id": "none"}),
            ],
        ),
        "duck": _uvx(
            "mcp-server-motherduck",
            "--db-path",
            ":memory:",
            "--read-write",
            calls=[
                ("execute_query", {"sql": "SELECT 42 AS answer"}),
                ("execute_query", {"sql": "SELEKT"}),
                ("list_tables", {}),
            ],
        ),
        "aws": _uvx(
            "awslabs.aws-documentation-mcp-server",
            calls=[
                ("read_documentation", {"url": "https://example.com/none"}),
                ("read_documentation", {"url": 5}),
            ],
        ),
    }
