"""Reading plans: lines of the form `task: dependency dependency ...`."""
import re

from .errors import PlanError

_NAME = re.compile(r"[\w.+-]+")


def parse_plan(text):
    """A dict from each task to the list of its dependencies, in the order of the plan."""
    plan = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        name, colon, rest = line.partition(":")
        name = name.strip()
        if not colon or not _NAME.fullmatch(name):
            raise PlanError("line %d: expected 'task: dependencies'" % number)
        if name in plan:
            raise PlanError("line %d: task %r is declared twice" % (number, name))
        plan[name] = _dependencies(rest, number)
    return plan


def _dependencies(text, number):
    names = []
    for name in text.split():
        if not _NAME.fullmatch(name):
            raise PlanError("line %d: bad name %r" % (number, name))
        if name not in names:
            names.append(name)
    return names
