"""Fetches what tests need besides wheels, each where it finds it later: `make test` runs this while
types are checked, so that no test waits for it.

What fails here is tried again by the test that needs it, which says why.
"""

from chromium import find_chromium
from guide_programs import PROGRAMS

if __name__ == "__main__":
    # The Java program takes Kafka's jars along.
    for fetch in (*PROGRAMS.values(), find_chromium):
        try:
            fetch()
        except Exception as error:
            print(f"{fetch.__name__}: {error}")
