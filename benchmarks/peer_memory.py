"""Print the seconds of spade_llm's additions as JSON: `python peer_memory.py AGENT DIRECTORY ENTRIES`.

It runs in spade_llm's environment. The directory has a memory of so many entries already.
"""

import json
import sys
import time

from spade_llm.memory.interaction_memory import AgentInteractionMemory

agent, directory, entries = sys.argv[1:]
memory = AgentInteractionMemory(agent, directory)
conversations = list(memory.get_all_interactions())
assert sum(len(memory.get_information(name)) for name in conversations) == int(entries), memory.storage_path
durations = []
for number in range(21):
    begin = time.perf_counter()
    memory.add_information(conversations[number], "User prefers JSON responses over XML, note 12345")
    durations.append(time.perf_counter() - begin)
print(json.dumps(durations))
