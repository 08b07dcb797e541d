"""From the buffer to the wheel: what this node stores of every message."""
