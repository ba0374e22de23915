"""How long things take: an action in rounds, and a planner with nothing around it.

`peek bench` is made of these, and so are the project's own benchmarks.
"""
