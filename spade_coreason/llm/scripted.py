"""The remedy for `python -m spade_coreason.llm.scripted`, which served the script until it was taken away."""

import sys

if __name__ == "__main__":
    remedy = "give an agent the model `script`, a test the FakeModel, and other programs a server with OpenAI's API"
    sys.exit(f"error: the script is served no more; {remedy}")
