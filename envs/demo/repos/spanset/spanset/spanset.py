"""A normalised set of spans."""
from .span import Span


def _start_key(span):
    return span.start or 0


def normalise(spans):
    """Sorted spans without overlaps; spans that touch are joined."""
    result = []
    for span in sorted(spans, key=_start_key):
        if result and _reaches(result[-1], span):
            last = result.pop()
            end = max(last.end or 0, span.end or 0)
            span = Span(last.start, end or None)
        result.append(span)
    return result


def _reaches(left, right):
    """Whether `right`, which does not start before `left`, overlaps or touches it."""
    if not left.end or not right.start:
        return True
    return right.start <= left.end


class SpanSet:
    def __init__(self, spans=()):
        self._spans = normalise(spans)

    @classmethod
    def parse(cls, text):
        """From text like '1..4, 8..'; an empty text is the empty set."""
        return cls(Span.parse(part) for part in text.split(",") if part.strip())

    # -- asking ----------------------------------------------------------------

    def __iter__(self):
        return iter(self._spans)

    def __bool__(self):
        return bool(self._spans)

    def __contains__(self, number):
        return any(number in span for span in self._spans)

    def __eq__(self, other):
        if not isinstance(other, SpanSet):
            return NotImplemented
        return self._spans == other._spans

    __hash__ = None

    def total(self):
        """How many integers there are; None if there is no end to them."""
        if not all(span.bounded() for span in self._spans):
            return None
        return sum(len(span) for span in self._spans)

    def __str__(self):
        return ", ".join(str(span) for span in self._spans)

    def __repr__(self):
        return "SpanSet.parse(%r)" % str(self)

    # -- changing --------------------------------------------------------------

    def add(self, start=None, end=None):
        self._spans = normalise(self._spans + [Span(start, end)])

    def remove(self, start=None, end=None):
        keep = SpanSet([Span(start, end)]).complement()
        self._spans = list(self & keep)

    # -- combining -------------------------------------------------------------

    def __or__(self, other):
        return SpanSet(list(self) + list(other))

    def __and__(self, other):
        parts = []
        for a in self:
            for b in other:
                start = _later_start(a.start, b.start)
                end = _earlier_end(a.end, b.end)
                if start is None or end is None or start < end:
                    parts.append(Span(start, end))
        return SpanSet(parts)

    def __sub__(self, other):
        return self & other.complement()

    def complement(self):
        """Everything that is not in this set."""
        gaps = []
        cursor = None
        for span in self._spans:
            if span.start:
                gaps.append(Span(cursor, span.start))
            cursor = span.end
        if cursor or not self._spans:
            gaps.append(Span(cursor, None))
        return SpanSet(gaps)


def _later_start(a, b):
    if a is None or b is None:
        return b if a is None else a
    return max(a, b)


def _earlier_end(a, b):
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)
