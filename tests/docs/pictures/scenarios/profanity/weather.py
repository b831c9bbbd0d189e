"""An agent for the picture: its answers grow, and it remembers the city."""

import asyncio

from spade_coreason import AgentRequest, Response, Session, agent


@agent(description="Knows the weather")
async def weather(request: AgentRequest, session: Session, response: Response) -> None:
    """Write the forecast of a city, row by row, or of tomorrow in the city that was asked for last."""
    query = request.payload["query"]
    if query.endswith("?"):
        await response.markdown(
            f"Tomorrow in *{await session.get('city', 'Valencia')}*: 21 °C, clouds. Leave the `umbrella` at home."
        )
        return
    await session.store("city", query)
    stream = await response.create_stream()
    for line in (
        f"The weather in **{query}**:\n\n",
        "| day | °C | sky |\n|---|---|---|\n",
        "| today | 24 | sun |\n",
        "| tomorrow | 21 | clouds |\n",
        "| Sunday | 17 | rain |\n",
    ):
        await stream.write(line)
        await asyncio.sleep(0.3)
    await stream.close()
