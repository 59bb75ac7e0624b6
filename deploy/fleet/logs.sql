-- DuckDB: the archives of all hosts as one view. Of each log the newest history counts: a glob over two has offsets twice.
-- Call it again for objects that came meanwhile.
SET VARIABLE files = (
    SELECT list(file) FROM (
        SELECT file, dense_rank() OVER (
            PARTITION BY regexp_extract(file, '/log=([0-9a-f]+)/', 1)
            ORDER BY regexp_extract(file, '/history=([0-9]+)/', 1) DESC) AS age
        FROM glob('s3://logs/fleet/log=*/history=*/*.parquet'))
    WHERE age = 1);

CREATE OR REPLACE TEMP VIEW logs AS
    SELECT * FROM read_parquet(getvariable('files'), hive_partitioning = true);
