"""A wheel that dies again and again, and wheels whose bytes are broken: is it ever wrong?

    fed_log.py    what a wheel is fed with, by number: the same records for whoever asks
    feeding.py    the wheel's calls, in the order in which a node makes them
    model.py      what a wheel must hold after so many records, and how that is compared
    worker.py     the process that is killed
    kills.py      `make wheel-kills`: kill, compare, go on
    damage.py     `make wheel-damage`: flipped bits and torn tails of a stopped wheel

The suite runs the same functions with smaller counts (test_*.py).
"""
