"""Requirements: comparators that must all hold."""
import operator
import re

from .version import Version, VersionError

_COMPARATOR = re.compile(r"(\^|~|>=|<=|>|<|=)?\s*(\d+(?:\.\d+){0,2})((?:-[0-9A-Za-z.-]+)?)(?:\+\S+)?")
_TESTS = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
}


class Comparator:
    def __init__(self, sign, version):
        self.sign = sign
        self.version = version

    def holds(self, version):
        return _TESTS[self.sign](version, self.version)

    def __repr__(self):
        return "%s%s" % (self.sign, self.version)


class Requirement:
    def __init__(self, text):
        self.text = text
        self.comparators = []
        for part in re.sub(r"([<>=^~])\s+", r"\1", text).replace(",", " ").split():
            if part != "*":
                self.comparators.extend(_comparators(part))

    def matches(self, version, prereleases=False):
        if not all(comparator.holds(version) for comparator in self.comparators):
            return False
        if version.prerelease and not prereleases:
            return any(c.version.prerelease for c in self.comparators)
        return True

    def __repr__(self):
        return "Requirement(%r)" % self.text


def _comparators(part):
    found = _COMPARATOR.fullmatch(part)
    if not found:
        raise VersionError("not a requirement: %r" % part)
    sign, numbers, prerelease = found.groups()
    given = [int(number) for number in numbers.split(".")]
    padded = given + [0] * (3 - len(given))
    low = Version(".".join(map(str, padded)) + prerelease)
    if sign == "^":
        return [Comparator(">=", low), Comparator("<", _caret_bound(padded))]
    if sign == "~":
        return [Comparator(">=", low), Comparator("<", _tilde_bound(given, padded))]
    return [Comparator(sign or "=", low)]


def _caret_bound(numbers):
    major, minor, patch = numbers
    if major:
        return Version.of(major + 1)
    if minor:
        return Version.of(0, minor + 1)
    return Version.of(0, 0, patch + 1)


def _tilde_bound(given, numbers):
    if len(given) == 1:
        return Version.of(numbers[0] + 1)
    return Version.of(numbers[0], numbers[1] + 1)
