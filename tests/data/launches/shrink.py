"""Shrinks launch records to what the tests need: four prompts, 32 tokens each; nothing that is kept is changed.

    python tests/data/launches/shrink.py FOLDER_OF_RECORDS [NAME ...]
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

NAMES = ("a1", "a3", "b1", "c2", "d1", "e1", "n4", "n5", "n7", "s1", "w1", "x2")
PROMPTS = (1, 5, 9, 14)
TOKENS = 32
DROPPED = ("repeat", "batched", "batched_repeat_identical", "digests", "timings_s")
ROWS = ("token_ids", "chosen_logprobs", "chosen_rank", "top_ids", "top_logprobs")


def shrunk(record: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in record.items() if key not in DROPPED}
    for field in ("prompts", "decode", "teacher_forced"):
        kept[field] = [dict(record[field][index]) for index in PROMPTS]
    for field in ("decode", "teacher_forced"):
        for entry in kept[field]:
            entry |= {key: entry[key][:TOKENS] for key in ROWS if key in entry}
    kept["kernel_plan"] = {**record["kernel_plan"], "loaded": None}
    return kept


def main(folder: str, *names: str) -> None:
    for name in names or NAMES:
        record = json.loads(gzip.decompress((Path(folder) / f"{name}.json.gz").read_bytes()))
        text = json.dumps(shrunk(record), separators=(",", ":"))
        Path(__file__).with_name(f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
