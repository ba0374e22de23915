"""The arena: kinds of traffic that anybody can place a policy on.  See README.md in this folder."""
