"""Runs a SQL file over the copy of a bucket in DuckDB, as its reader does, and prints a JSON object for each log: its id, the
number of its records, of its offsets, and of those that are missing; and the hosts and components that it names.

    fleet.py FOLDER ENDPOINT BUCKET FILE   FILE names the FOLDER that the bucket is copied into
"""

import json
import sys

import duckdb

from read import copy

folder, endpoint, bucket, file = sys.argv[1:]
copy(folder, endpoint, bucket)
with open(file, encoding="utf-8") as sql:
    text = sql.read()
database = duckdb.connect()
database.execute(text)
rows = database.execute(
    'SELECT log, count(*), count(DISTINCT "Offset"), max("Offset") - min("Offset") + 1 - count(DISTINCT "Offset"),'
    " list(DISTINCT Host), list(DISTINCT ServiceName) FROM logs GROUP BY log ORDER BY log"
).fetchall()
for log, records, offsets, missing, hosts, components in rows:
    found = {"log": log, "records": records, "offsets": offsets, "missing": missing, "hosts": hosts, "components": components}
    print(json.dumps(found))
