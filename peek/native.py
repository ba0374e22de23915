"""`i64`, a whole number of 64 bits in compiled code; to type checkers (`native.pyi`) it is `int`."""

from mypy_extensions import i64 as i64
