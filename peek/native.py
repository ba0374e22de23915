"""`i64`, a 64-bit integer in compiled code; type checkers (`native.pyi`) see `int`."""

from mypy_extensions import i64 as i64
