import unittest
from datetime import date

from everymonth import Rule


class RuleTest(unittest.TestCase):
    def test_every_month(self):
        rule = Rule(date(2023, 11, 15))
        self.assertEqual(rule.take(3), [date(2023, 11, 15), date(2023, 12, 15), date(2024, 1, 15)])

    def test_every_third_month(self):
        rule = Rule(date(2024, 1, 1), every=3)
        self.assertEqual(rule.take(2), [date(2024, 1, 1), date(2024, 4, 1)])

    def test_every_year(self):
        rule = Rule(date(2020, 5, 1), unit="year")
        self.assertEqual(rule.take(2), [date(2020, 5, 1), date(2021, 5, 1)])

    def test_short_month(self):
        self.assertEqual(Rule(date(2024, 1, 31)).take(2)[1], date(2024, 2, 29))

    def test_count(self):
        self.assertEqual(len(list(Rule(date(2024, 1, 1), count=4))), 4)
        self.assertEqual(list(Rule(date(2024, 1, 1), count=0)), [])

    def test_until_is_included(self):
        rule = Rule(date(2024, 1, 5), until=date(2024, 3, 5))
        self.assertEqual(list(rule)[-1], date(2024, 3, 5))

    def test_between(self):
        rule = Rule(date(2024, 1, 5))
        self.assertEqual(rule.between(date(2024, 2, 5), date(2024, 3, 4)), [date(2024, 2, 5)])

    def test_next_after(self):
        rule = Rule(date(2024, 1, 5))
        self.assertEqual(rule.next_after(date(2023, 6, 1)), date(2024, 1, 5))
        self.assertEqual(rule.next_after(date(2024, 1, 5)), date(2024, 2, 5))

    def test_contains(self):
        rule = Rule(date(2024, 1, 5), every=2)
        self.assertIn(date(2024, 3, 5), rule)
        self.assertNotIn(date(2024, 2, 5), rule)

    def test_arguments_are_checked(self):
        for bad in ({"every": 0}, {"unit": "week"}, {"overflow": "next"}, {"count": -1}):
            with self.assertRaises(ValueError):
                Rule(date(2024, 1, 1), **bad)
