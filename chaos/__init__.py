"""Loads that mix all kinds of requests, and the judge of what became of them.

`workload.py` plans, `traffic.py` sends, `evidence.py` reads the topics with another driver than the
nodes' data plane, `judge.py` decides. Nothing here imports the code that it judges.
"""
