"""`delayd bench`: how fast this machine is with delayd, beside something else in the same run.

Machines differ, so figures come with a ratio against something in the same run, the two in turn:
rates against bare confluent-kafka doing the same work on the same brokers, lateness with a target
missing against lateness without. Not here: tests; a benchmark never passes or fails by a figure.
"""
