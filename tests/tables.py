"""Tables as other programs write them."""

from __future__ import annotations

import csv

import pyarrow as pa
import pyarrow.parquet as pq


def write_table(path, columns):
    """Write columns to a parquet or csv file."""
    if str(path).endswith(".parquet"):
        pq.write_table(pa.table(columns), path)
        return
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
