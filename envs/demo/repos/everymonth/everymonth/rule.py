"""The rule of a series of dates."""
import datetime
import itertools

from .months import add_months

_UNITS = {"month": 1, "year": 12}
_OVERFLOWS = ("clamp", "skip")


class Rule:
    def __init__(self, start, every=1, unit="month", overflow="clamp", count=None, until=None):
        if every < 1:
            raise ValueError("every must be at least 1")
        if unit not in _UNITS:
            raise ValueError("unknown unit %r" % (unit,))
        if overflow not in _OVERFLOWS:
            raise ValueError("unknown overflow %r" % (overflow,))
        if count is not None and count < 0:
            raise ValueError("count must not be negative")
        self.start = start
        self.every = every
        self.unit = unit
        self.overflow = overflow
        self.count = count
        self.until = until

    @property
    def step(self):
        """Months between two occurrences."""
        return self.every * _UNITS[self.unit]

    def __iter__(self):
        day = self.start
        index = 0
        while self.count is None or index < self.count:
            if self.until is not None and day > self.until:
                return
            if self.overflow == "clamp" or day.day == self.start.day:
                yield day
            index += 1
            try:
                day = add_months(day, self.step)
            except ValueError:
                return  # beyond the last year that dates can have

    def take(self, number):
        """The first `number` occurrences, fewer if the series ends before."""
        return list(itertools.islice(self, number))

    def between(self, first, last):
        """Occurrences from `first` to `last`, both included."""
        found = []
        for day in self:
            if day > last:
                break
            if day >= first:
                found.append(day)
        return found

    def next_after(self, day):
        """The first occurrence later than `day`, or None."""
        found = self.start
        while found <= day:
            found = add_months(found, self.step)
        if self.until is not None and found > self.until:
            return None
        return found

    def __contains__(self, day):
        return self.next_after(day - datetime.timedelta(days=1)) == day

    def __repr__(self):
        return "Rule(%s, every=%d, unit=%r, overflow=%r, count=%r, until=%s)" % (
            self.start, self.every, self.unit, self.overflow, self.count, self.until)
