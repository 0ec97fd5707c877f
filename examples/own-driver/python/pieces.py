#!/usr/bin/env python3
"""Books ten units for every account, a few accounts at a time.

Each piece commits with a checkpoint that says how far it has come. Whatever stops the
worker, the next attempt reads the checkpoint and goes on from there; the last
transaction completes the window. Environment and exit codes are those of credit.py.
"""

import sys

import psycopg
from psycopg.types.json import Jsonb

from credit import RETRY, WINDOW, broken, connect

PIECE = 2


def main():
    try:
        with connect() as conn:
            conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            conn.read_only = False
            work(conn)
        return 0
    except psycopg.Error as error:
        state = error.sqlstate or ""
        print(f"pieces: {state} {error}", file=sys.stderr)
        if state == "OG002":  # done already
            return 0
        # OG001, OG004, OG007: another attempt has the window, or wrote the checkpoint.
        # Also after a COMMIT whose answer was lost: the next attempt finds out.
        if state in ("OG001", "OG004", "OG007", "40001", "40P01") or broken(error):
            return RETRY
        return 1


def work(conn):
    seq, data = conn.execute("SELECT coalesce(checkpoint_seq, 0), checkpoint FROM onceguard.stored(%(job)s, %(start)s::timestamptz)", WINDOW).fetchone()
    conn.commit()
    after = data["after"] if data else ""
    while True:
        conn.execute("SELECT onceguard.begin(%(job)s, %(start)s::timestamptz, %(execution)s::uuid)", WINDOW)
        accounts = book(conn, after)
        if not accounts:
            conn.execute("SELECT onceguard.complete(%(job)s, %(start)s::timestamptz, %(execution)s::uuid)", WINDOW)
            conn.commit()
            return
        after = accounts[-1]
        conn.execute(
            "SELECT onceguard.checkpoint(%(job)s, %(start)s::timestamptz, %(execution)s::uuid, %(seq)s::int, %(data)s)",
            {**WINDOW, "seq": seq, "data": Jsonb({"after": after})},
        )
        conn.commit()
        seq += 1


def book(conn, after):
    """The business of one piece: gives the accounts of it, none when all are done."""
    rows = conn.execute("SELECT account FROM balance WHERE account > %s ORDER BY account LIMIT %s FOR UPDATE", [after, PIECE]).fetchall()
    accounts = [account for (account,) in rows]
    conn.execute("UPDATE balance SET units = units + 10 WHERE account = ANY(%s)", [accounts])
    return accounts


if __name__ == "__main__":
    sys.exit(main())
