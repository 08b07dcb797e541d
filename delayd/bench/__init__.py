"""`delayd bench`: how fast this machine is with delayd, beside the bare driver in the same run.

Machines differ, so every figure comes with a ratio against bare confluent-kafka doing the same
work on the same brokers, the two in turn. Not here: tests; a benchmark never passes or fails.
"""
