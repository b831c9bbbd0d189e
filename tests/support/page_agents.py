"""Agents for tests of the page, copied beside the configuration of a platform: they wait for files instead of some time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from spade_coreason import AgentDefinition, AgentRequest, Response, Session

FIRST_WORDS = "one two three four"
LAST_WORDS = "five six seven eight"
EVERYTHING = """\
## A heading

A **bold** word, `code`, a [link](https://example.org/page) and a list:

1. first
2. second

> A quotation.

```python
def greet(name: str) -> str:
    return f"Good morning, {name}, and here is a line that is so much wider than a phone that it has to scroll by itself"
```

| order | price | state | carrier | promised | delivered |
|---|---:|---|---|---|---|
| 1001 | 20 | delivered | international parcel service | 2026-11-02 | 2026-11-03 |
| 1002 | 480 | on its way | international parcel service | 2026-11-30 | |
"""


class WritingAgent:
    """Writes half of an answer, and the rest when the file `gate` is there. `everything` is answered with all that there is."""

    def __init__(self, manifest: AgentDefinition, gate: str = "gate") -> None:
        self.manifest = manifest
        self._gate = Path(gate)

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Write."""
        await response.thought("What have I been asked?")
        if request.payload["query"] == "everything":
            await response.thought("Everything, it seems.")
            await response.markdown(EVERYTHING)
            rows = [{"city": "Berlin", "sun": "yes"}, {"city": "Bergen", "sun": "no"}]
            await response.data({"columns": ["city", "sun"], "rows": rows}, title="Weather", view_hint="TABLE")
            return
        stream = await response.create_stream()
        for word in FIRST_WORDS.split():
            await stream.write(f"{word} ")
        while not self._gate.exists():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
        await stream.write(LAST_WORDS)
        await stream.close()


class HostileAgent:
    """Has the texts of the file `payloads.json` (a list) in all that the page shows of it, and of its answers.

    `data` is answered with tables and other data of each, `odd` with data that lack what their hint needs, and `ask` with
    questions that have them as choices.
    """

    def __init__(self, payloads: str = "payloads.json") -> None:
        self._payloads: list[str] = json.loads(Path(payloads).read_text())
        description = "\n".join(self._payloads)
        self.manifest = AgentDefinition.simple("hostile", description=description, examples=self._payloads)

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Attack."""
        match request.payload["query"]:
            case "data":
                for text in self._payloads:
                    rows = [{text: text, "other": {text: [text]}}]
                    await response.data({"columns": [text, "other"], "rows": rows}, title=text, view_hint="TABLE")
                    await response.data({text: text}, title=text, view_hint="KEY_VALUE")
                    await response.data({text: [text]}, title=text)
                await response.markdown("That was all.")
            case "odd":
                for odd in ({"columns": ["a"]}, {"columns": ["a"], "rows": None}, {"columns": ["a"], "rows": [None, 1, "x"]}):
                    await response.data(odd, title="odd", view_hint="TABLE")
            case "ask":
                for start in range(0, len(self._payloads), 20):
                    await response.ask_person("Which one?", choices=self._payloads[start : start + 20])
            case text:
                await response.markdown(str(text))
