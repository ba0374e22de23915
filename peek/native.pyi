from typing import TypeAlias

i64: TypeAlias = int
