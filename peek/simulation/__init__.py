"""The simulated engines: two schedulers in virtual time, their caches, step costs and workloads.

The same `Planner` as beside a real engine orders their queues.  docs/simulator.md states the model.
"""
