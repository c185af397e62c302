"""Rules as text: 'monthly from 2024-01-31 every 2 skip until 2024-12-31'."""
import datetime

from .rule import Rule

_KINDS = {"monthly": "month", "yearly": "year"}


class RuleSyntaxError(ValueError):
    """A text that is not a rule."""


def parse(text):
    words = iter(text.split())
    kind = next(words, "")
    if kind not in _KINDS:
        raise RuleSyntaxError("a rule begins with 'monthly' or 'yearly', not %r" % kind)
    options = {"unit": _KINDS[kind]}
    start = None
    for word in words:
        if word == "from":
            start = _date(next(words, ""))
        elif word == "until":
            options["until"] = _date(next(words, ""))
        elif word in ("every", "count"):
            options[word] = _number(next(words, ""))
        elif word in ("clamp", "skip"):
            options["overflow"] = word
        else:
            raise RuleSyntaxError("unexpected %r" % word)
    if start is None:
        raise RuleSyntaxError("'from' is missing")
    return Rule(start, **options)


def _date(word):
    try:
        return datetime.datetime.strptime(word, "%Y-%m-%d").date()
    except ValueError:
        raise RuleSyntaxError("not a date: %r" % word) from None


def _number(word):
    if not word.isdigit() or int(word) == 0:
        raise RuleSyntaxError("not a positive number: %r" % word)
    return int(word)
