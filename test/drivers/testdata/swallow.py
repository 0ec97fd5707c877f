"""A worker that catches an error within a savepoint and commits all the same."""

import os

import psycopg

window = [os.environ["ONCEGUARD_JOB_NAME"], os.environ["ONCEGUARD_WINDOW_START"], os.environ["ONCEGUARD_EXECUTION_ID"]]
with psycopg.connect("") as conn:
    conn.execute("SELECT onceguard.begin(%s, %s::timestamptz, %s::uuid)", window)
    conn.execute("UPDATE balance SET units = units + 10")
    try:
        with conn.transaction():  # a savepoint
            conn.execute("SELECT onceguard.complete(%s, '2000-01-01'::timestamptz, %s::uuid)", [window[0], window[2]])
    except psycopg.Error:
        pass
