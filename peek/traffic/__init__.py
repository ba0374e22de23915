"""Recorded traffic as a block-hash trace: lines of a log in, rows in Mooncake's format out.

`request_rows` reads requests with their times, one JSON object a line, `engine_logs` what vLLM and SGLang
write when they log requests; both give `events`, of which a `Tracer` makes rows.  No files: the command
`peek trace` opens them.
"""
