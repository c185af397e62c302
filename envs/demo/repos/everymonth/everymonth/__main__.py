"""Print the first dates of a rule."""
import argparse
import sys

from .text import RuleSyntaxError, parse


def main(argv=None):
    parser = argparse.ArgumentParser(prog="everymonth", description=__doc__)
    parser.add_argument("rule", nargs="+", help="for example: monthly from 2024-01-31")
    parser.add_argument("-n", type=int, default=10, help="how many dates (default: 10)")
    options = parser.parse_args(argv)
    try:
        rule = parse(" ".join(options.rule))
    except RuleSyntaxError as error:
        print("everymonth: %s" % error, file=sys.stderr)
        return 2
    for day in rule.take(options.n):
        print(day.isoformat())
    return 0


if __name__ == "__main__":
    sys.exit(main())
