"""Asks DuckDB for the records of one service within a time, of all files of a folder, and counts the bytes that it reads for that.

    range.py FOLDER SERVICE FROM TO    times in Unix nanoseconds, TO is beyond

It prints a JSON object: count, and the bytes that the system's calls have read meanwhile.
"""

import json
import sys

import duckdb


def read_bytes():
    with open("/proc/self/io") as io:
        return int(next(line for line in io if line.startswith("rchar:")).split()[1])


def main():
    folder, service, begin, end = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    files = f"read_parquet('{folder}/**/*.parquet', hive_partitioning = false)"
    connection = duckdb.connect()
    connection.sql("SELECT 1").fetchall()
    before = read_bytes()
    (count, bytes_of_bodies) = connection.execute(
        f"SELECT count(*), sum(strlen(Body)) FROM {files} WHERE ServiceName = ?"
        " AND Timestamp >= make_timestamptz(?) AND Timestamp < make_timestamptz(?)",
        [service, begin // 1000, end // 1000],
    ).fetchone()
    print(json.dumps({"count": count, "bytes_of_bodies": bytes_of_bodies, "read": read_bytes() - before}))


if __name__ == "__main__":
    main()
