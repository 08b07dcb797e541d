"""A program that fetches what tests need besides wheels to where each test looks for it.

`make test` runs it while types are checked, so that no test waits. A test whose needs could not be
fetched tries again, and says why it fails.
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
