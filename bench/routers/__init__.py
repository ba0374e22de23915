"""Measures routers from PyPI, plain Envoy and `peek-epp` in front of the same real vLLM servers."""
