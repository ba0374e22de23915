"""Admission policies: the published one, the library's default, and the baselines."""
