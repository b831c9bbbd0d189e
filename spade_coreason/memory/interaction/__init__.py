"""The interaction memory: a JSON file for each agent, with a journal."""
