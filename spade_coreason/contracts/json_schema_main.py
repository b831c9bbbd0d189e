"""The program that validates values against JSON Schemas, for `json_schema.py`. It imports nothing of the package.

It reads requests and writes answers, a line of JSON for each. A request is `{"values": […], "schema": {…}, "root": "payload"}`.
Its answer is a list with a sentence for each value, or null for a value that fits. A process of its own works on each request,
and the kernel ends it at the limits. Nothing else would end a search of Python's `re`.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # a second of imports for formats, which are not checked

from jsonschema import Draft202012Validator, SchemaError
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # it has no types
from referencing.exceptions import Unresolvable

_NICENESS = 5
_OOM_SCORE = "1000"
# Messages of jsonschema quote the value, which may be a whole document. The mistake stands at their end.
_MAX_HEAD_CHARACTERS, _MAX_TAIL_CHARACTERS = 120, 160


def main(cpu_s: int, memory_bytes: int) -> None:
    """Answer requests until the input ends, each within the limits. The answer to one that exceeds them is null."""
    os.nice(_NICENESS)  # the platform comes first
    with suppress(OSError):  # if the machine runs out of memory, this process goes before the platform
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            _answer(line, {resource.RLIMIT_CPU: cpu_s, resource.RLIMIT_AS: memory_bytes})
        _, status = os.waitpid(child, 0)
        if status != 0:
            os.write(1, b"null\n")


def _answer(line: bytes, limits: dict[int, int]) -> NoReturn:
    """Answer a request, and end the process."""
    status = 1
    try:
        for kind, limit in limits.items():
            _, inherited = resource.getrlimit(kind)
            resource.setrlimit(kind, (limit, limit) if inherited == resource.RLIM_INFINITY else (min(limit, inherited),) * 2)
        request = json.loads(line)
        problems = [find_problem(value, request["schema"], request["root"]) for value in request["values"]]
        answer = json.dumps(problems).encode() + b"\n"
        with open(1, "wb", closefd=False) as output:
            output.write(answer)
        status = 0
    except (MemoryError, RecursionError):
        pass  # the status says so
    finally:
        os._exit(status)


def find_problem(value: Any, schema: Any, root: str) -> str | None:
    """Return the most telling mistake with its place in the value, or None. A mistake in the schema itself is one too."""
    try:
        validator = validator_for(schema, default=Draft202012Validator)
        validator.check_schema(schema)
        # The registry holds the drafts of JSON Schema only, so nothing is fetched from the network.
        error = best_match(validator(schema, registry=REGISTRY).iter_errors(value))
    except SchemaError as schema_error:
        return f"its JSON Schema is wrong: {_shorten(schema_error.message)}"
    except Unresolvable as unresolvable:
        return f'its JSON Schema refers to "{_shorten(unresolvable.ref)}", which is not in it'
    except RecursionError:
        return "its JSON Schema and this value are nested without end"
    except MemoryError:
        raise
    except Exception as problem:  # noqa: BLE001 - jsonschema raises any for a schema that only looks right
        return f"its JSON Schema cannot be used: {_shorten(f'{type(problem).__name__}: {problem}')}"
    if error is None:
        return None
    place = ".".join(str(step) for step in error.absolute_path)
    return f"{_shorten(place) or root}: {_shorten(error.message)}"


def _shorten(message: str) -> str:
    message = " ".join(message.split())
    return (
        message
        if len(message) <= _MAX_HEAD_CHARACTERS + _MAX_TAIL_CHARACTERS
        else f"{message[:_MAX_HEAD_CHARACTERS]} … {message[-_MAX_TAIL_CHARACTERS:]}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
