"""Helpers that several test modules share: oracles, strategies, naive twins, hostile inputs."""
