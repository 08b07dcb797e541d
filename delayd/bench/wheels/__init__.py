"""`delayd bench wheel`: what one node's storage does by itself, without Kafka, in one thread.

measuring.py    the runs and the figures that come of them
jobs.py         what is measured, each in a process of its own
load.py         the messages
driven.py       the calls of the wheel, in the order in which a node makes them
"""
