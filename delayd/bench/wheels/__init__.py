"""`delayd bench wheel`: the rate and cost of one node's storage, without Kafka, in one thread.

measuring.py       the runs and the figures that come of them
jobs.py            the measured work, each job in a process of its own
wheel_driver.py    the messages, and the calls of the wheel in the order in which a node makes them
"""
