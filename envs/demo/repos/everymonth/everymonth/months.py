"""Arithmetic with months."""
import calendar
import datetime


def days_in_month(year, month):
    return calendar.monthrange(year, month)[1]


def add_months(day, months):
    """The same day `months` later; the last day of the month if there is no such day."""
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    month += 1
    return datetime.date(year, month, min(day.day, days_in_month(year, month)))


def months_between(first, second):
    """How many months the month of `second` lies after that of `first`."""
    return (second.year - first.year) * 12 + second.month - first.month
