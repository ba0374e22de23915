"""The arena: kinds of traffic on which policies are compared.  See README.md in this folder."""
