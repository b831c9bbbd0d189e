"""Round trips between two agents in two processes: those hosted here beside others, in one run."""
