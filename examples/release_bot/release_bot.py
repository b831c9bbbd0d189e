"""A bot that goes through the checklist of a release with the people of a chat room."""

from spade_coreason import (
    AgentDefinition,
    AgentRequest,
    FileError,
    Files,
    PeerError,
    Peers,
    People,
    Response,
    Session,
    command,
    every,
)

STEPS = ("tests", "documentation", "announcement")
HELP = "Ask me `what is in the next release?`, begin one with `/release 1.2`, and tell me `tests done`."


class ReleaseBot:
    """Knows what is in the next release, and what is left to do for it."""

    def __init__(
        self,
        manifest: AgentDefinition,
        peers: Peers,
        files: Files,
        people: People,
        changelog: str = "changelog@localhost",
        report_to: str = "",
    ) -> None:
        self.manifest = manifest
        self.peers, self.files, self.people, self.changelog = peers, files, people, changelog
        self.report_to = report_to

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        if "webhook" in request.metadata:  # the CI system (docs/how-to/webhooks.md)
            await self.announce(request.payload["query"], request.payload.get("event"), response)
            return
        words = request.payload["query"].lower().strip(" .!?").split()
        version = await session.get("version")
        try:
            if "next" in words:
                await response.markdown(await self.ask_changelog(""))
            elif version and len(words) == 2 and words[0] in STEPS and words[1] == "done":
                await self.tick(words[0], version, session, response)
            else:
                await response.markdown(HELP)
        except PeerError as error:
            await response.error(f"I cannot look up the changes: {error}.")

    @command("release", "begin the checklist of a release", version="the version, such as 1.2")
    async def release(self, session: Session, version: str) -> str:
        try:
            changes = await self.ask_changelog(version)
        except PeerError as error:
            return f"I cannot begin this release: {error}."
        await session.store("version", version)
        await session.store("done", {})
        return f"{changes}\n\n{checklist(version, {})}"

    @every("0 8 * * mon-fri")
    async def report(self, request: AgentRequest, session: Session, response: Response) -> None:
        if not self.report_to:
            return
        changes = await self.ask_changelog("")
        if changes != await session.get("reported"):  # no message on a day without news
            await self.people.notify(self.report_to, changes)
            await session.store("reported", changes)

    async def announce(self, line: str, event: object, response: Response) -> None:
        text = describe_build(event) or line
        if self.report_to:
            await self.people.notify(self.report_to, text)
        await response.markdown(text)

    async def tick(self, step: str, version: str, session: Session, response: Response) -> None:
        done = {**await session.get("done"), step: session.identity.name}
        await session.store("done", done)
        await response.markdown(checklist(version, done))
        if len(done) == len(STEPS):
            notes = await self.ask_changelog(version)
            try:
                await response.markdown(await self.files.upload(f"release-{version}.md", notes.encode()))
            except FileError:  # the server keeps no files
                await response.markdown(notes)

    async def ask_changelog(self, version: str) -> str:
        """Return the changes of a release as Markdown; those of the next one without a version."""
        answer = await self.peers.ask(self.changelog, version, timeout=10)
        release = answer.data[0]["data"]
        return f"**Release {release['version']}**\n\n{release['changes']}"


def checklist(version: str, done: dict[str, str]) -> str:
    lines = [f"- {step}: done by {done[step]}" if step in done else f"- {step}: open" for step in STEPS]
    return "\n".join([f"To do for {version}:", "", *lines])


def describe_build(event: object) -> str:
    """Return a line about a workflow of GitHub Actions that is done; "" for another event."""
    match event:
        case {"action": "completed", "workflow_run": {"name": str(name), "conclusion": str(result), "html_url": str(url)}}:
            return f"{'✔' if result == 'success' else '✘'} {name}: {result} {url}"
    return ""
