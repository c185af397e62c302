"""Print the tasks of a plan in an order in which they can be done."""
import argparse
import sys

from .errors import PlanError
from .order import order
from .plan import parse_plan


def main(argv=None, out=sys.stdout, err=sys.stderr):
    parser = argparse.ArgumentParser(prog="taskorder", description=__doc__)
    parser.add_argument("plan", help="file with the plan; - is standard input")
    parser.add_argument("--only", action="append", metavar="TASK", help="leave out what TASK does not need")
    options = parser.parse_args(argv)
    try:
        if options.plan == "-":
            text = sys.stdin.read()
        else:
            with open(options.plan, encoding="utf-8") as file:
                text = file.read()
        for name in order(parse_plan(text), options.only):
            print(name, file=out)
    except (OSError, PlanError) as error:
        print("taskorder: %s" % error, file=err)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
