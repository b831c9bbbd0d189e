"""Text of files: plain text, Markdown, PDF."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ...domain.environment.installation import install_hint
from ...exceptions import KnowledgeError

MARKDOWN_SUFFIXES = {".md", ".markdown"}
TEXT_SUFFIXES = {".txt", ".text", ".rst", ".org", ".adoc", ".csv", ".tsv", ".log", ""}
PDF_SUFFIXES = {".pdf"}
KNOWN_SUFFIXES = MARKDOWN_SUFFIXES | TEXT_SUFFIXES | PDF_SUFFIXES
_MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileText:
    """The text of a file."""

    text: str
    is_markdown: bool


def find_files(paths: Iterable[Path], excluded: Path) -> Iterator[Path]:
    """Yield the files in `paths`, and the files of known types in directories in `paths`, recursively.

    In directories, hidden files are left out, and files below `excluded`, which is a platform's own data. Raises
    KnowledgeError if a path does not exist.
    """
    for path in paths:
        if not path.exists():
            raise KnowledgeError(f"{path}: no such file")
        if not path.is_dir():
            yield path
            continue
        for file in sorted(path.rglob("*")):
            is_hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
            is_ours = excluded.resolve() in file.resolve().parents
            if file.is_file() and not is_hidden and not is_ours and file.suffix.lower() in KNOWN_SUFFIXES - {""}:
                yield file


def read_document(path: Path) -> FileText:
    """Read a file as text. Its suffix decides: Markdown, PDF, or else plain text in UTF-8.

    Raises KnowledgeError if the file cannot be read, is too large or has no text.
    """
    suffix = path.suffix.lower()
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise _too_long_error(path)
        text = _read_pdf(path) if suffix in PDF_SUFFIXES else _read_bytes(path).decode("utf-8-sig")
    except OSError as error:
        raise KnowledgeError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        remedy = "convert it" if suffix in KNOWN_SUFFIXES else "only text, Markdown and PDF are supported"
        raise KnowledgeError(f"{path}: is not UTF-8 text (byte {error.start}); {remedy}") from error
    text = text.replace("\r\n", "\n")
    if not text.strip():
        raise KnowledgeError(f"{path}: has no text" + ("; scanned pages are not read" if suffix in PDF_SUFFIXES else ""))
    return FileText(text, suffix in MARKDOWN_SUFFIXES)


def _read_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)  # a device or a pipe reports no size, and may be endless
    if len(content) > _MAX_BYTES:
        raise _too_long_error(path)
    return content


def _too_long_error(path: Path) -> KnowledgeError:
    return KnowledgeError(f"{path}: has more than {_MAX_BYTES:,} bytes, the limit; split it")


def _read_pdf(path: Path) -> str:
    try:
        library: Any = import_module("pypdf")
    except ImportError as error:
        raise KnowledgeError(f"{path}: PDF needs pypdf: {install_hint('pdf')}") from error
    try:
        reader = library.PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise KnowledgeError(f"{path}: is protected by a password; save it without one")
        return "\n\n".join(page.extract_text() for page in reader.pages)
    except OSError:
        raise
    except KnowledgeError:
        raise
    except Exception as error:  # a damaged file may raise anything in pypdf
        raise KnowledgeError(f"{path}: cannot be read as PDF: {type(error).__name__}: {error}") from error
