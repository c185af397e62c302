import unittest
from datetime import date

from everymonth import RuleSyntaxError, parse


class TextTest(unittest.TestCase):
    def test_all_words(self):
        rule = parse("monthly from 2024-01-31 every 2 skip until 2024-12-31 count 3")
        self.assertEqual((rule.start, rule.every, rule.overflow), (date(2024, 1, 31), 2, "skip"))
        self.assertEqual((rule.until, rule.count), (date(2024, 12, 31), 3))

    def test_yearly(self):
        self.assertEqual(parse("yearly from 2024-01-01").unit, "year")

    def test_errors(self):
        for text in ("", "daily from 2024-01-01", "monthly", "monthly from 2024-02-30",
                     "monthly from 2024-01-01 every 0", "monthly from 2024-01-01 sometimes"):
            with self.assertRaises(RuleSyntaxError):
                parse(text)
