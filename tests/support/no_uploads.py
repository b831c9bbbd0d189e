"""The upload of a host without a server that keeps files."""

from __future__ import annotations

from spade_coreason.exceptions import UploadError


async def refuse_upload(name: str, *_: object) -> str:
    """Raise UploadError."""
    raise UploadError(name, "there is no way to a server that keeps files")
