"""verl: a load balancer for its rollout servers, see `load_balancer`."""
