"""The wire between the platform and the process of an agent: frames of JSON over a socket.

A frame is its length in 4 bytes, then a JSON array of messages. A message is an array: its name, then its arguments.
Nothing is pickled on the way to the platform, so that a faulty process can send nothing worse than a wrong message.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from pydantic_core import from_json, to_json

from ...domain.texts.text import replace_lone_surrogates

MAX_FRAME_BYTES = 8 * 1024 * 1024
"""The largest frame that the platform accepts."""
WINDOW_BYTES = 256 * 1024
"""The bytes of one turn that may be under way: the process then waits until the platform has acknowledged some."""
MESSAGE_OVERHEAD_BYTES = 64
"""The bytes that each message counts in addition to its own, so that short ones are limited too."""
_MAX_UNSENT_BYTES = 64 * 1024 * 1024
_FLUSH_BYTES = 1024 * 1024
_READ_BYTES = 256 * 1024
_LENGTH = struct.Struct(">I")

Message: TypeAlias = list[Any]


class ProtocolError(Exception):
    """The other side sent something that it must not send."""


def encode_message(message: Message) -> bytes:
    """Encode a message. ValueError if it is no JSON. Lone surrogates are replaced."""
    try:
        return to_json(message)
    except ValueError:
        return to_json(replace_lone_surrogates(message))


class FrameReader:
    """A reader of frames: bytes in, messages out. `max_bytes` limits one frame; None for no limit."""

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Message, int]]:
        """Add bytes, and yield the messages of all complete frames, each with its share of the frame in bytes.

        Raises ProtocolError for a frame that is too long or is no JSON array of messages.
        """
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= _LENGTH.size:
                [length] = _LENGTH.unpack_from(buffer, start)
                if self._max_bytes is not None and length > self._max_bytes:
                    raise ProtocolError(f"a frame of {length:,} bytes (limit: {self._max_bytes:,})")
                end = start + _LENGTH.size + length
                if len(buffer) < end:
                    break
                frame = bytes(buffer[start + _LENGTH.size : end])
                start = end
                yield from _decode_frame(frame)
        finally:
            del buffer[:start]


def _decode_frame(frame: bytes) -> Iterator[tuple[Message, int]]:
    try:
        messages = from_json(frame)
    except ValueError as error:
        raise ProtocolError(f"a malformed frame ({str(error)[:100]})") from error
    if not isinstance(messages, list):
        raise ProtocolError("a frame that is not a list of messages")
    share = len(frame) // max(1, len(messages)) + MESSAGE_OVERHEAD_BYTES
    for message in messages:
        if not isinstance(message, list) or not message or not isinstance(message[0], str):
            raise ProtocolError("a message without a name")
        yield message, share


class FrameConnection:
    """One end of the socket, in the running event loop. Messages of one loop iteration leave in one frame.

    `on_message` gets each message and its size in bytes. `on_closed` is called once, with a ProtocolError for what must not
    be sent, or None when the other side has closed. No function is called after `close`.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[Message, int], None],
        on_closed: Callable[[ProtocolError | None], None],
        max_bytes: int | None,
    ) -> None:
        self._socket = sock
        self._on_message = on_message
        self._on_closed = on_closed
        self._reader = FrameReader(max_bytes)
        self._loop = asyncio.get_running_loop()
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        self._unsent = bytearray()
        self._is_writing = False
        self.is_closed = False
        self.is_reading = False
        """True while a message is handled: nothing else can be read then."""
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self.read)

    def send(self, message: Message) -> int:
        """Send a message with the frame of this loop iteration, and return its size in bytes. ValueError if it is no JSON."""
        return self.send_encoded(encode_message(message))

    def send_encoded(self, data: bytes) -> int:
        """Send a message that `encode_message` has encoded. Messages after `close` are dropped."""
        if not self.is_closed:
            if not self._batch:
                self._loop.call_soon(self.flush)
            self._batch.append(data)
            self._batch_bytes += len(data)
            if self._batch_bytes > _FLUSH_BYTES:
                self.flush()
        return len(data) + MESSAGE_OVERHEAD_BYTES

    def flush(self) -> None:
        """Write what was sent, as far as the socket takes it. The rest follows when it does."""
        if not self._batch or self.is_closed:
            return
        frame = b"[" + b",".join(self._batch) + b"]"
        self._batch, self._batch_bytes = [], 0
        self._unsent += _LENGTH.pack(len(frame)) + frame
        if not self._is_writing:
            self._write()
        if len(self._unsent) > _MAX_UNSENT_BYTES:
            self._close_with(ProtocolError(f"nothing, and does not read: {len(self._unsent):,} bytes wait"))

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close_with(None)
            return
        del self._unsent[:sent]
        if bool(self._unsent) is not self._is_writing:
            self._is_writing = bool(self._unsent)
            if self._is_writing:
                self._loop.add_writer(self._socket.fileno(), self._write)
            else:
                self._loop.remove_writer(self._socket.fileno())

    def read(self) -> None:
        """Read what has arrived, at most 256 KiB, so that other work of the event loop runs in between."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close_with(None)
            return
        self.is_reading = True
        try:
            for message, size in self._reader.feed(data):
                if self.is_closed:
                    return
                self._on_message(message, size)
        except ProtocolError as error:
            self._close_with(error)
        finally:
            self.is_reading = False

    def exchange(self, timeout_s: float, *others: int) -> list[int]:
        """Block until something arrives, at most `timeout_s`, and read and write. Return those of `others` that can be read.

        It serves where the event loop does not run: while an agent is built, or waits without an await.
        """
        self.flush()
        own = self._socket.fileno()
        readable, writable, _ = select.select([own, *others], [own] if self._unsent else [], [], max(0.0, timeout_s))
        if writable:
            self._write()
        if own in readable and not self.is_closed:
            self.read()
        return [other for other in others if other in readable]

    def close(self) -> None:
        """Close the socket. What was sent and is not written is dropped."""
        if not self.is_closed:
            self.is_closed = True
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()

    def _close_with(self, error: ProtocolError | None) -> None:
        if not self.is_closed:
            self.close()
            self._on_closed(error)
