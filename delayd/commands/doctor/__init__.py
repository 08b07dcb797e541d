"""`delayd doctor`: looks for what is wrong with a cluster and with what it stands on.

Each file looks at one concern, and knows what mends it. Nothing is changed. Not here: whether what
was delivered is right (`delayd audit`), and whether a stopped node's wheel is whole (`delayd wheel
verify`).
Source: docs/operations.md, "The doctor".
"""
