"""Finds attacks on models in what servers say: a table of rules, and how text is read.

In: definitions and results. Out: findings, each with the passage quoted. It must not change or
withhold anything: callers decide.
"""
