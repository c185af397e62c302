"""Dates that come back every few months or years."""
from .rule import Rule
from .text import RuleSyntaxError, parse

__all__ = ["Rule", "RuleSyntaxError", "parse"]
