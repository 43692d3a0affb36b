"""HTML made of elements, in which every text is escaped."""

from collections.abc import Iterable

from multitap.printable import printable

_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
"""Like `html.escape`, whose module takes a megabyte for names of characters."""
_VOID = frozenset({"input", "link", "meta"})


class Markup(str):
    """Text that is already HTML; only `element` makes it."""

    __slots__ = ()


Content = str | int | Iterable["Content"] | None


def element(tag: str, *content: Content, **attributes: str | float | None) -> Markup:
    """One element; texts in it are escaped, and an underscore in an attribute is a hyphen."""
    named = "".join(
        f' {name.strip("_").replace("_", "-")}="{printable(str(value)).translate(_ESCAPES)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Markup(f"<{tag}{named}>")
    return Markup(f"<{tag}{named}>{''.join(map(_text, content))}</{tag}>")


def _text(content: Content) -> str:
    if isinstance(content, Markup):
        return content
    if content is None:
        return ""
    # control characters too: a browser may show them as something else
    if isinstance(content, str | int):
        return printable(str(content)).translate(_ESCAPES)
    return "".join(map(_text, content))
