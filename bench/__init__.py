"""Measures the library: speed (`test_*.py`, pure.py, against.py), memory (soak.py), what policies are worth.

A package of the checkout, never installed.  Run its modules from the top of the checkout, where Python finds
the checkout's own compiled `peek`: `python -m bench.soak`.
"""
