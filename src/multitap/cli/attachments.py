"""Saves the content of results as files."""

import mimetypes
from collections.abc import Iterable
from itertools import count
from pathlib import Path

import msgspec

from multitap.cli.terminal import note
from multitap.errors import MultitapError
from multitap.names import slug
from multitap.results import AudioBlock, Block, EmbeddedResource, ImageBlock

# characters: a stem may be the end of an address, and file systems allow 255 bytes
_LONGEST = 80


class Attachment(msgspec.Struct, frozen=True):
    """Bytes with their media type."""

    data: bytes
    mime_type: str | None


def attachments(blocks: Iterable[Block]) -> tuple[Attachment, ...]:
    """The parts of an answer that are files, not text."""
    files: list[Attachment] = []
    for block in blocks:
        match block:
            case ImageBlock() | AudioBlock():
                files.append(Attachment(block.data, block.mime_type))
            case EmbeddedResource(text=str(text)):
                files.append(Attachment(text.encode(), block.mime_type or "text/plain"))
            case EmbeddedResource(data=bytes(data)):
                files.append(Attachment(data, block.mime_type))
            case _:
                continue
    return tuple(files)


def save_all(files: Iterable[Attachment], folder: Path, stem: str) -> None:
    """Write each to its own file, and print the paths.

    Raises:
        MultitapError: The folder cannot be written to.
    """
    for path in save_attachments(files, folder, stem):
        note(f"saved {path}")


def save_attachments(files: Iterable[Attachment], folder: Path, stem: str) -> tuple[Path, ...]:
    """Write each to its own new file; returns the paths.

    Raises:
        MultitapError: The folder cannot be written to.
    """
    safe = slug(stem).strip("_")[:_LONGEST] or "result"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tuple(_write(folder, safe, attachment) for attachment in files)
    except OSError as exc:
        raise MultitapError(f"cannot save to {str(folder)!r}: {exc.strerror}") from None


def _write(folder: Path, stem: str, attachment: Attachment) -> Path:
    for number in count(1):
        path = folder / f"{stem}-{number}{_suffix(attachment.mime_type)}"
        try:
            # exclusively: nothing is overwritten, and no link that lies there is followed
            with path.open("xb") as file:
                file.write(attachment.data)
        except FileExistsError:
            continue
        return path
    raise AssertionError("there is always another number")


def _suffix(mime_type: str | None) -> str:
    plain = (mime_type or "").partition(";")[0].strip().lower()
    # by the media type alone: a name that a server chose could end in anything
    return mimetypes.guess_extension(plain) or ".bin"
