"""Published figures that the report shows beside its own: appendix tables of the paper, three-seed means.

Each entry is (throughput req/s, cache hit %, mean TTFT s, mean E2E s); None where a table lacks it.  Baseline
is the paper's "stock" of the engine: LPM (0.5.9) on SGLang, FCFS with prefix caching (0.19.1) on vLLM.
"""

from __future__ import annotations

Row = tuple[float, float, float, float]

BASELINE = {"sglang": "lpm+lru", "vllm": "fcfs+lru"}

TABLES: dict[str, dict[str, dict[str, Row]]] = {
    "sglang": {
        "w1a:heavy": {
            "lpm+lru": (7.43, 65.8, 42.6, 47.8),
            "lpm+pe": (7.36, 65.4, 43.1, 48.3),
            "clpm": (14.46, 93.7, 11.0, 16.9),
            "clpm+gm": (14.80, 93.6, 10.8, 16.4),
            "clpm+gm+dl": (14.98, 93.5, 10.4, 16.0),
            "clpm+gm+pe": (14.89, 93.5, 10.5, 16.2),
            "clpm+gm+dl+pe": (15.03, 93.6, 10.3, 15.9),
        },
        "w1b:heavy": {
            "lpm+lru": (6.73, 59.2, 55.0, 60.3),
            "lpm+pe": (6.70, 58.8, 55.3, 60.8),
            "clpm": (13.74, 91.9, 16.5, 22.5),
            "clpm+gm": (14.34, 93.3, 15.4, 21.1),
            "clpm+gm+dl": (14.49, 93.3, 14.9, 20.8),
            "clpm+gm+pe": (14.66, 93.3, 14.9, 20.8),
            "clpm+gm+dl+pe": (14.55, 93.2, 15.0, 20.8),
        },
        "w1c:heavy": {
            "lpm+lru": (1.42, 38.3, 233.2, 238.2),
            "lpm+pe": (1.41, 38.3, 234.0, 239.0),
            "clpm": (3.72, 88.3, 36.9, 42.6),
            "clpm+gm": (3.75, 89.4, 32.7, 38.3),
            "clpm+gm+dl": (3.71, 89.2, 31.5, 37.2),
            "clpm+gm+pe": (3.75, 89.2, 32.6, 38.3),
            "clpm+gm+dl+pe": (3.73, 88.8, 29.7, 35.3),
        },
        "w1d:heavy": {
            "lpm+lru": (1.22, 30.8, 335.5, 340.6),
            "lpm+pe": (1.20, 30.9, 340.2, 345.4),
            "clpm": (4.28, 91.0, 62.5, 69.1),
            "clpm+gm": (4.42, 92.2, 59.6, 66.1),
            "clpm+gm+dl": (4.36, 92.2, 60.3, 66.7),
            "clpm+gm+pe": (4.44, 92.4, 59.9, 66.3),
            "clpm+gm+dl+pe": (4.41, 92.1, 59.7, 66.2),
        },
        "w2b:moderate": {
            "lpm+lru": (0.289, 62.4, 391.1, 419.2),
            "clpm+gm+dl+pe": (0.330, 79.4, 178.8, 206.8),
        },
        "w2b:heavy": {
            "lpm+lru": (0.283, 60.0, 543.4, 571.5),
            "clpm+gm+dl+pe": (0.357, 83.2, 212.2, 241.6),
        },
        "w3b:heavy": {
            "lpm+lru": (0.464, 55.1, 324.2, 330.1),
            "clpm+gm+dl+pe": (1.237, 98.2, 85.3, 91.3),
        },
        "w3c:heavy": {
            "lpm+lru": (2.896, 44.6, 46.6, 50.0),
            "clpm+gm+dl+pe": (6.022, 84.2, 15.7, 18.9),
        },
        "w3b:heavy:dp2": {
            "lpm+lru": (1.043, 87.8, 180.7, 192.6),
            "clpm+gm+dl+pe": (1.689, 96.9, 91.4, 103.6),
        },
        "w3c:heavy:dp2": {
            "lpm+lru": (7.757, 72.9, 28.7, 33.4),
            "clpm+gm+dl+pe": (13.634, 91.5, 10.2, 14.9),
        },
        "w4:heavy:sglang": {
            "fcfs+lru": (3.58, 59.5, 1.175, 22.4),
            "lpm+lru": (3.58, 60.4, 1.129, 22.0),
            "clpm+gm+dl+pe": (3.62, 60.7, 1.185, 21.8),
        },
        "w4-shared:heavy:sglang": {
            "fcfs+lru": (3.59, 59.7, 1.181, 22.4),
            "lpm+lru": (3.58, 60.0, 1.142, 22.2),
            "clpm+gm+dl+pe": (3.62, 61.0, 1.157, 21.6),
        },
        "w5-long:heavy": {
            "lpm+lru": (7.83, 0.7, 21.7, 28.3),
            "clpm+gm+dl+pe": (8.20, 10.2, 19.4, 26.0),
        },
        "w5-short:heavy": {
            "lpm+lru": (21.89, 3.7, 3.6, 10.05),
            "clpm+gm+dl+pe": (21.68, 3.7, 3.6, 10.14),
        },
    },
    "vllm": {
        "w1a:heavy": {
            "fcfs+lru": (8.50, 66.3, 14.0, 19.3),
            "fcfs+pe": (8.34, 66.1, 14.4, 19.9),
            "clpm": (11.58, 87.5, 6.0, 11.1),
            "clpm+gm": (13.14, 86.4, 4.2, 10.4),
            "clpm+gm+dl": (11.41, 86.7, 6.1, 11.2),
            "clpm+gm+pe": (12.96, 86.8, 4.3, 10.7),
            "clpm+gm+dl+pe": (13.04, 86.7, 4.2, 10.4),
        },
        "w1b:heavy": {
            "fcfs+lru": (7.52, 58.1, 17.1, 22.4),
            "fcfs+pe": (7.31, 57.9, 17.7, 23.1),
            "clpm": (10.83, 83.7, 8.0, 13.2),
            "clpm+gm": (11.76, 81.1, 6.5, 12.6),
            "clpm+gm+dl": (10.65, 83.5, 7.8, 13.1),
            "clpm+gm+pe": (11.56, 81.7, 6.5, 12.8),
            "clpm+gm+dl+pe": (11.57, 81.7, 6.4, 12.5),
        },
        "w1c:heavy": {
            "fcfs+lru": (1.68, 37.7, 97.8, 102.6),
            "fcfs+pe": (1.82, 38.0, 86.6, 91.5),
            "clpm": (4.90, 86.5, 16.9, 22.4),
            "clpm+gm": (4.36, 86.2, 21.8, 27.2),
            "clpm+gm+dl": (4.80, 86.2, 18.5, 23.8),
            "clpm+gm+pe": (4.24, 85.8, 22.6, 28.7),
            "clpm+gm+dl+pe": (4.25, 86.3, 22.4, 28.5),
        },
        "w1d:heavy": {
            "fcfs+lru": (1.54, 32.8, 106.3, 111.3),
            "fcfs+pe": (1.46, 31.1, 111.1, 116.3),
            "clpm": (3.04, 81.8, 39.4, 44.4),
            "clpm+gm": (3.60, 78.9, 35.0, 40.4),
            "clpm+gm+dl": (2.96, 80.9, 40.5, 45.6),
            "clpm+gm+pe": (3.57, 79.2, 34.4, 40.4),
            "clpm+gm+dl+pe": (3.52, 79.0, 33.2, 39.0),
        },
        "w2b:moderate": {
            "fcfs+lru": (0.114, 29.4, 28.4, 51.4),
            "clpm+gm+dl+pe": (0.114, 33.0, 8.3, 31.6),
        },
        "w2b:heavy": {
            "fcfs+lru": (0.143, 29.5, 90.7, 114.6),
            "clpm+gm+dl+pe": (0.151, 40.1, 24.7, 50.5),
        },
        "w3b:heavy": {
            "fcfs+lru": (0.241, 37.7, 559.6, 572.7),
            "clpm+gm+dl+pe": (1.072, 97.1, 83.2, 103.4),
        },
        "w3c:heavy": {
            "fcfs+lru": (1.798, 37.2, 75.8, 79.9),
            "clpm+gm+dl+pe": (3.728, 76.5, 24.9, 31.0),
        },
        "w3b:heavy:dp2": {
            "fcfs+lru": (0.478, 55.4, 384.4, 399.6),
            "clpm+gm+dl+pe": (2.152, 97.3, 54.3, 83.8),
        },
        "w3c:heavy:dp2": {
            "fcfs+lru": (4.040, 51.4, 60.5, 64.7),
            "clpm+gm+dl+pe": (11.440, 92.7, 12.3, 17.9),
        },
        "w4:heavy:vllm": {
            "fcfs+lru": (3.57, 85.6, 0.178, 5.40),
            "clpm+gm+dl+pe": (3.58, 87.2, 0.167, 5.31),
        },
        "w4-shared:heavy:vllm": {
            "fcfs+lru": (3.54, 91.5, 0.171, 4.78),
            "clpm+gm+dl+pe": (3.54, 91.5, 0.173, 4.79),
        },
        "w5-long:heavy": {
            "fcfs+lru": (18.33, 97.5, 4.25, 12.45),
            "clpm+gm+dl+pe": (22.27, 98.8, 1.61, 9.98),
        },
        "w5-short:heavy": {
            "fcfs+lru": (39.63, 96.7, 0.39, 5.69),
            "clpm+gm+dl+pe": (39.70, 96.7, 0.35, 5.66),
        },
    },
}

TPOT_W1A = {"sglang": 45.9, "vllm": 43.5}
"""Stock, milliseconds, W1 A heavy."""


def published(family: str, stream: str, policy: str) -> Row | None:
    """The paper's row, None where it states none.  Variants of a W1 or W2 cell have the cell's row."""
    if stream.startswith(("w1", "w2")):
        stream = ":".join(stream.split(":")[:2])
    return TABLES[family].get(stream, {}).get(policy)
