"""Reads a history of an archive by DuckDB, by pyarrow and by DataFusion. The first two share no code with what wrote it.

    read.py FOLDER            what is in the files of a folder
    read.py FOLDER ENDPOINT BUCKET   the same, after all objects of a bucket were copied into the folder

It prints one JSON object for each reader: count, distinct offsets, least and greatest one, and the bodies in the order of their
offsets. A glob names ONE history: the newest.
"""

import glob
import json
import os
import sys

import datafusion
import duckdb
import pyarrow
import pyarrow.dataset as dataset


def copy(folder, endpoint, bucket):
    import boto3

    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    s3 = boto3.client("s3", endpoint_url=endpoint, **keys)
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for each in page.get("Contents", []):
            path = os.path.join(folder, each["Key"])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            s3.download_file(bucket, each["Key"], path)


def by_duckdb(history):
    files = f"read_parquet('{history}/*.parquet', hive_partitioning = false)"
    rows = duckdb.sql(f"SELECT count(*), count(DISTINCT \"Offset\"), min(\"Offset\"), max(\"Offset\") FROM {files}").fetchall()[0]
    bodies = duckdb.sql(f'SELECT Body, CAST(Body AS BLOB), BodyBytes FROM {files} ORDER BY "Offset"').fetchall()
    typed = duckdb.sql(
        f"SELECT count(*) FROM {files} WHERE ServiceName IS NOT NULL AND Date = CAST(AppendTime AT TIME ZONE 'UTC' AS DATE)"
        " AND map_keys(ResourceAttributes) IS NOT NULL"
    ).fetchall()[0][0]
    assert typed == rows[0], f"{typed} of {rows[0]} rows have the types that they should"
    return rows, [text if text is not None else raw.decode("latin-1") for text, _, raw in bodies]


def by_pyarrow(history):
    files = sorted(glob.glob(f"{history}/*.parquet"))
    return of(dataset.dataset(files, format="parquet").to_table(columns=["Offset", "Body", "BodyBytes"]).sort_by("Offset"))


def by_datafusion(history):
    context = datafusion.SessionContext()
    context.register_parquet("history", history)
    sql = 'SELECT "Offset", "Body", "BodyBytes" FROM history ORDER BY "Offset"'
    return of(pyarrow.Table.from_batches(context.sql(sql).collect()))


def of(table):
    offsets = table["Offset"].to_pylist()
    rows = (len(offsets), len(set(offsets)), min(offsets, default=None), max(offsets, default=None))
    pairs = zip(table["Body"].to_pylist(), table["BodyBytes"].to_pylist())
    return rows, [text if text is not None else raw.decode("latin-1") for text, raw in pairs]


def main():
    folder = sys.argv[1]
    if len(sys.argv) > 2:
        copy(folder, sys.argv[2], sys.argv[3])
    history = sorted(glob.glob(f"{folder}/**/log=*/history=*", recursive=True))[-1]
    for name, read in (("duckdb", by_duckdb), ("pyarrow", by_pyarrow), ("datafusion", by_datafusion)):
        (count, distinct, least, greatest), bodies = read(history)
        found = {"reader": name, "count": count, "distinct": distinct, "min": least, "max": greatest, "bodies": bodies}
        print(json.dumps(found))


if __name__ == "__main__":
    main()
