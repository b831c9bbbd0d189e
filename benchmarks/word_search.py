"""What the search by words finds: questions and passages in three languages, each with its score.

`python -m benchmarks.word_search` prints the table of docs/explanation/memory.md.
"""

from __future__ import annotations

import asyncio
import tempfile

from spade_coreason import Knowledge
from spade_coreason.storage import open_database
from spade_coreason.storage.knowledge import KnowledgeRepository

PAIRS = (
    ("Where can I park?", "Parking is free behind the building."),
    ("Do you deliver on Saturdays?", "Deliveries are made every day but Sunday; on a Saturday until noon."),
    ("Can I cancel my booking?", "Cancellations are free until the evening before. Booked rooms are refunded."),
    ("When does the swimming pool open?", "Guests swim from seven; the pool opens at six on Sundays."),
    ("Which payments do you accept?", "We accept cards and cash; you pay at the counter."),
    ("How long is the warranty?", "Every device has a guarantee of two years."),
    ("Who is the general manager?", "Our cook is known for generous portions."),
    ("Wie kann ich kündigen?", "Die Kündigung ist jederzeit möglich."),
    ("Welche Häuser sind barrierefrei?", "Jedes Haus ist barrierefrei."),
    ("Was kostet die Lieferung?", "Wir liefern umsonst; nach 18 Uhr kosten Lieferungen 3 Euro."),
    ("Wie lange ist die Rückgabe möglich?", "Rueckgaben sind 30 Tage lang moeglich."),
    ("Sind Straßenschuhe erlaubt?", "Strassenschuhe sind in der Halle nicht erlaubt."),
    ("Wo kann ich parken?", "Parkplätze sind hinter dem Haus."),
    ("Wann habt ihr geöffnet?", "Die Öffnungszeiten sind Montag bis Freitag von 9 bis 17 Uhr."),
    ("¿Dónde puedo aparcar?", "El aparcamiento está detrás del edificio."),
    ("¿Se admiten devoluciones?", "La devolución se admite durante 14 días."),
    ("¿Tienen habitaciones para niños?", "Cada habitación tiene una cama para un niño."),
    ("¿Puedo pagar con tarjeta?", "Aceptamos pagos con tarjetas y en efectivo."),
    ("¿Cuánto cuesta el envío?", "Los envíos son gratuitos a partir de 30 euros."),
    ("¿Cuándo abren?", "El horario de apertura es de nueve a cinco."),
)


async def measure_score(url: str, question: str, passage: str) -> float:
    """Return the score of the passage in an agent's knowledge that contains nothing else; 0 if it is not found."""
    database = await open_database(url, "off")
    try:
        knowledge = Knowledge(KnowledgeRepository(database, "shop@localhost"))
        await knowledge.remove("passage")
        await knowledge.add(passage, "passage")
        hits = await knowledge.search(question, threshold=0.0)
        return hits[0].score if hits else 0.0
    finally:
        await database.close()


async def measure_table(url: str) -> list[str]:
    """Return the rows of the table, as Markdown, measured in the database at `url`."""
    scores = [await measure_score(url, question, passage) for question, passage in PAIRS]
    return [f"| {question} | {passage} | {score:.2f} |" for (question, passage), score in zip(PAIRS, scores, strict=True)]


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        print("| question | passage | by words |\n|---|---|---|")
        for row in asyncio.run(measure_table(f"sqlite+aiosqlite:///{directory}/platform.db")):
            print(row)


if __name__ == "__main__":
    main()
