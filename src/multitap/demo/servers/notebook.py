"""A notebook: tools, resources, a resource template and a prompt."""

from mcp.server import MCPServer

server = MCPServer("notebook", version="1.0", instructions="Titles are single words.")
notes = {"welcome": "Every note is a resource: read note://welcome."}


@server.tool()
def write(title: str, text: str) -> str:
    """Save a note; an existing note with this title is replaced."""
    notes[title] = text
    return f"note://{title}"


@server.tool()
def search(word: str) -> list[str]:
    """List the titles of notes that contain a word."""
    return [title for title, text in notes.items() if word.casefold() in text.casefold()]


@server.resource("note://")
def index() -> str:
    """The titles of all notes."""
    return "\n".join(notes)


@server.resource("note://{title}")
def note(title: str) -> str:
    """One note."""
    return notes[title]


@server.prompt()
def summarise(title: str) -> str:
    """Ask for a summary of a note."""
    return f"Summarise in one sentence:\n\n{notes[title]}"


if __name__ == "__main__":
    server.run()
