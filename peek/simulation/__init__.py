"""The simulated engines: two schedulers in virtual time, their caches, step costs and workloads.

They are driven through the same `Planner` as a real engine, and need none.  docs/simulator.md states the
model.
"""
