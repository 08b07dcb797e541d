"""A wheel under kills, and wheels with damaged bytes: none may ever be silently wrong.

    fed_log.py    the records that feed a wheel, by number
    feeding.py    the wheel's calls, in the order in which a node makes them
    model.py      the content that a wheel must have after so many records, and the comparison
    worker.py     the process that is killed
    kills.py      `make wheel-kills`: kill, compare, go on
    damage.py     `make wheel-damage`: flipped bits and torn tails of a stopped wheel

The suite runs the same functions with smaller counts (test_*.py).
"""
