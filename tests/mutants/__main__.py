"""`make mutants`: hunt all mutants, or those that are named, and write docs/design/mutants.md.

    make mutants                                    all of them
    make mutants ARGS="no-fencing start-at-now"     these; the rows of the others stay
    make mutants ARGS=--list                        their names

Exit code 1 if one survives, 2 if the unbroken tree is red or the hunt itself failed.
"""

import argparse
import sys

from mutants.catalogue import MUTANTS
from mutants.hunt import ROOT, HuntFailedError, Outcome, hunt, judge_unbroken
from mutants.mutant import NoSuchTextError
from mutants.page import SURVIVED, page_of, read_rows, row_of

PAGE = ROOT / "docs" / "design" / "mutants.md"


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="hunt only these")
    parser.add_argument("--list", action="store_true", help="print the names")
    asked = parser.parse_args()
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    if asked.list:
        print(*by_name, sep="\n")
        return 0
    if unknown := [name for name in asked.names if name not in by_name]:
        parser.error(f"no such mutants: {', '.join(unknown)}")
    mutants = [by_name[name] for name in asked.names] or list(MUTANTS)
    try:
        unbroken = judge_unbroken(mutants)
        print(_told("(unbroken)", unbroken), flush=True)
        if unbroken.is_caught:
            print("the unbroken tree is red: nothing can be said of mutants", file=sys.stderr)
            return 2
        survived = []
        for mutant in mutants:
            outcome = hunt(mutant)
            print(_told(mutant.name, outcome), flush=True)
            rows = read_rows(PAGE)
            rows[mutant.name] = row = row_of(mutant, outcome)
            PAGE.write_text(page_of(MUTANTS, rows))
            if row.caught_by == SURVIVED:
                survived.append(mutant.name)
    except (HuntFailedError, NoSuchTextError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(mutants) - len(survived)} of {len(mutants)} caught")
    if survived:
        print(f"survived: {', '.join(survived)}", file=sys.stderr)
    return 1 if survived else 0


def _told(name: str, outcome: Outcome) -> str:
    green = f"{outcome.green} seeds"
    red = outcome.red_seed or outcome.red_test or "nothing"
    what = f"{green} green; red: {red}".replace("\n", " ")
    return f"{name:<40} {outcome.seconds:>4.0f} s  {what}"


if __name__ == "__main__":
    sys.exit(main())
