"""Collects bytes that arrive in small pieces, with little memory overhead."""

_MANY = 1024  # pieces joined early: millions of tiny ones would cost more than their bytes
_BLOCK = 1024 * 1024  # bytes joined early: small pieces would fragment the memory


class ChunkBuffer:
    """Collects pieces and joins them, in linear time."""

    __slots__ = ("_blocks", "_pieces", "_separator", "_size")

    def __init__(self, separator: bytes = b"") -> None:
        self._separator = separator
        self._blocks: list[bytes] = []
        self._pieces: list[bytes] = []
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._blocks or self._pieces)

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if len(self._pieces) >= _MANY or self._size >= _BLOCK:
            self._blocks.append(self._separator.join(self._pieces))
            self._pieces.clear()
            self._size = 0

    def join(self) -> bytes:
        if not self._blocks and len(self._pieces) == 1:
            return self._pieces[0]
        return self._separator.join((*self._blocks, *self._pieces))

    def beginning(self, size: int) -> bytes:
        """The first bytes, without the separators."""
        head = b""
        for piece in (*self._blocks, *self._pieces):
            head += piece[:size]
            if len(head) >= size:
                break
        return head[:size]

    def clear(self) -> None:
        self._blocks.clear()
        self._pieces.clear()
        self._size = 0
