import unittest

from spanset import SpanSet


class NormaliseTest(unittest.TestCase):
    def check(self, text, expected):
        self.assertEqual(str(SpanSet.parse(text)), expected)

    def test_overlap(self):
        self.check("5..9, 1..6", "1..9")

    def test_touching(self):
        self.check("1..4, 4..6", "1..6")

    def test_apart(self):
        self.check("8..9, 1..4", "1..4, 8..9")

    def test_inside(self):
        self.check("1..10, 3..4", "1..10")

    def test_empty(self):
        self.check("", "")


class CombineTest(unittest.TestCase):
    def test_minus(self):
        result = SpanSet.parse("1..9") - SpanSet.parse("3..5")
        self.assertEqual(str(result), "1..3, 5..9")

    def test_complement(self):
        self.assertEqual(str(SpanSet.parse("1..4, 6..8").complement()), "..1, 4..6, 8..")

    def test_remove(self):
        busy = SpanSet.parse("1..9")
        busy.remove(1, 3)
        self.assertEqual(str(busy), "3..9")

    def test_total(self):
        self.assertEqual(SpanSet.parse("1..4, 6..8").total(), 5)
        self.assertIsNone(SpanSet.parse("1..4, 6..").total())
