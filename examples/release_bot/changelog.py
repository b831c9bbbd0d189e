"""An agent that knows the changelog, for people and for other agents."""

import re
from pathlib import Path

from spade_coreason import AgentRequest, Response, Session, agent

CHANGELOG = Path(__file__).parent / "CHANGELOG.md"


@agent(description="Knows the changes of each release")
async def changelog(request: AgentRequest, session: Session, response: Response) -> None:
    sections = re.findall(r"^## (\S+)\n+(.*?)(?=\n+## |\Z)", CHANGELOG.read_text(encoding="utf-8"), re.M | re.S)
    changes = dict(sections)
    version = request.payload["query"] or next(iter(changes))
    if version in changes:
        await response.data({"version": version, "changes": changes[version].strip()})
    else:
        await response.error(f"The changelog has no release {version}; it has {', '.join(changes)}")
