#!/usr/bin/env python3
"""Books ten units with psycopg 3 and completes its window in the same transaction.

It finds its database by the usual PGHOST, PGDATABASE, PGUSER, ...
Exit codes: 0 done, now or before; 75 run me again; 1 a mistake of this program.
"""

import os
import random
import sys
import time

import psycopg

RETRY = 75
TRIES = 5

# What the guard tells its worker: three arguments of each call.
WINDOW = {
    "job": os.environ["ONCEGUARD_JOB_NAME"],
    "start": os.environ["ONCEGUARD_WINDOW_START"],
    "execution": os.environ["ONCEGUARD_EXECUTION_ID"],
}


def main():
    for n in range(1, TRIES + 1):
        try:
            once()
            return 0
        except psycopg.Error as error:
            state = error.sqlstate or ""
            print(f"credit: {state} {error}", file=sys.stderr)
            if state == "OG002":  # done already
                return 0
            if state in ("40001", "40P01"):  # the whole transaction again
                time.sleep(random.uniform(0, 0.1 * n))
            elif state in ("OG001", "OG004"):  # the right to this window is gone: stop
                return RETRY
            elif broken(error):
                return RETRY
            else:
                return 1
    return RETRY


def broken(error):
    """Whether the connection broke, or somebody cancelled. Without a SQLSTATE psycopg's other errors are mistakes of this program."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate[:2] in ("08", "57")


def book(conn):
    """The business of this window."""
    conn.execute("UPDATE balance SET units = units + 10 WHERE account = 'daily-credit'")
    conn.execute("INSERT INTO booking (account, window_start, units) VALUES ('daily-credit', %(start)s::timestamptz, 10)", WINDOW)


def once():
    """One transaction on a connection of its own; whatever fails, closing it rolls back."""
    conn = connect()
    try:
        conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        conn.read_only = False
        # psycopg sends BEGIN before the first statement.
        conn.execute("SELECT onceguard.begin(%(job)s, %(start)s::timestamptz, %(execution)s::uuid)", WINDOW)
        book(conn)
        conn.execute("SELECT onceguard.complete(%(job)s, %(start)s::timestamptz, %(execution)s::uuid)", WINDOW)
        try:
            conn.commit()
        except psycopg.Error:
            if not done():
                raise
    finally:
        conn.close()


def done():
    """What became of a COMMIT that gave an error. Only True is an answer: the server may still be at it."""
    try:
        with connect() as conn:
            return conn.execute(
                "SELECT coalesce(status = 'completed' AND execution_id = %(execution)s::uuid, false)"
                " FROM onceguard.stored(%(job)s, %(start)s::timestamptz)",
                WINDOW,
            ).fetchone()[0]
    except psycopg.Error:
        return False


def connect():
    # No prepared statements: PgBouncer may be between.
    return psycopg.connect("", connect_timeout=10, prepare_threshold=None)


if __name__ == "__main__":
    sys.exit(main())
