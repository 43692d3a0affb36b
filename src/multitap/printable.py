"""Text that is safe to show on a terminal."""


def printable(text: str) -> str:
    """`text` without what would steer a terminal; line ends and tabs stay."""
    return "".join(
        char if char in "\n\t" or char.isprintable() else "" if char == "\r" else "�"
        for char in text
    )
