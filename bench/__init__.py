"""Measures the library: speed (`test_*.py`, pure.py, against.py), memory (soak.py), the gain of policies.

This package is part of the checkout and never installed.  Run its modules from the top of the checkout, where
Python finds the checkout's own compiled `peek`: `python -m bench.soak`.
"""
