"""The keys that work now, in as many lines as they need."""

from collections.abc import Iterable, Iterator

from rich.cells import cell_len
from textual.content import Content
from textual.widgets import Static

_GAP = 1


class KeyBar(Static):
    """Shows the keys of the current place and row; a click presses one.

    Textual's own footer has one line, and cuts what does not fit.
    """

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    KeyBar {
        dock: bottom; height: auto; color: $footer-foreground; background: $footer-background;
        link-style: none; link-color: $footer-foreground; link-background: $footer-background;
    }
    """

    def on_mount(self) -> None:
        changed = self.screen.bindings_updated_signal  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        changed.subscribe(self, self._on_changed)  # pyright: ignore[reportUnknownMemberType]

    def _on_changed(self, _screen: object) -> None:
        self._show()

    def on_resize(self) -> None:
        self._show()

    def _show(self) -> None:
        display = self.app.get_key_display  # pyright: ignore[reportUnknownMemberType]
        keys = [
            (binding.key, display(binding), binding.description)
            for _, binding, _, _ in self.screen.active_bindings.values()
            if binding.show
        ]
        lines = pack(
            ((key, f"{key_text} {label}") for key, key_text, label in keys), self.size.width
        )
        labels = {key: (key_text, label) for key, key_text, label in keys}
        rows = (
            Content(" " * _GAP).join(_button(key, *labels[key]) for key in line) for line in lines
        )
        self.update(Content("\n").join(rows))


def _button(key: str, key_text: str, label: str) -> Content:
    # with variables, because a key such as `[` would be read as markup
    return Content.from_markup(
        f"[@click=app.simulate_key('{key}')][$footer-key-foreground b]$key_text[/] $label[/]",
        key_text=key_text,
        label=label,
    )


def pack(items: Iterable[tuple[str, str]], width: int) -> Iterator[list[str]]:
    """The names of items in lines, none of which is wider, given the text of each."""
    line: list[str] = []
    used = 0
    for name, text in items:
        needs = cell_len(text) + (_GAP if line else 0)
        if line and used + needs > width:
            yield line
            line, used, needs = [], 0, cell_len(text)
        line.append(name)
        used += needs
    if line:
        yield line
