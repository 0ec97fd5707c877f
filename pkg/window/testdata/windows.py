#!/usr/bin/env python3
"""The oracle of TestGoldenWindows: writes windows.tsv.

It shares nothing with the Go code: zones are Python's zoneinfo, fields are parsed here, and
instants are found by looking at each minute. Rule "calendar": each UTC minute of the year
whose civil time has the fields. Rule "once": each civil minute that has the fields, read by
PEP 495 with fold=0, which is what RFC 5545 section 3.3.5 says: the first of two, and the
offset before a gap.

Columns: zone, year (UTC), rule, schedule, number of windows, SHA-256 of all of them (Unix
seconds, a line each), and those within 30 hours of a moved clock.
"""
import hashlib
import os
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

ZONES = {
    "America/New_York": (2025,), "Europe/Berlin": (2023, 2025), "Europe/Lisbon": (2025,),
    "America/Sao_Paulo": (2018, 2021), "Africa/Cairo": (2021, 2024), "Australia/Lord_Howe": (2025,),
    "Antarctica/Troll": (2025,), "Asia/Kolkata": (2025,), "Etc/UTC": (2024,), "Pacific/Apia": (2011,),
}
SCHEDULES = (
    "*/10 * * * *", "0 0 * * *", "30 1 * * *", "30 2 * * *", "0 2 30 * *", "45 1 * * *", "0 */3 * * *", "15,45 0-3 * * *",
    "0 5 * * 4", "0 5 * * 6", "20 0-22/2 * 3-11 0,1", "0 12 13 * 5",
)
STEP = timedelta(minutes=1)


def field(text, lo, hi):
    found = set()
    for part in text.split(","):
        part, _, step = part.partition("/")
        first, _, last = part.partition("-")
        a, b = (lo, hi) if first == "*" else (int(first), int(last or first))
        found |= set(range(a, b + 1, int(step or 1)))
    return found


def matcher(spec):
    m, h, d, mon, w = spec.split()
    minutes, hours, dates = field(m, 0, 59), field(h, 0, 23), field(d, 1, 31)
    months, weekdays = field(mon, 1, 12), field(w, 0, 6)

    def match(t):
        if t.minute not in minutes or t.hour not in hours or t.month not in months:
            return False
        on_date, on_weekday = t.day in dates, t.isoweekday() % 7 in weekdays
        return on_date and on_weekday if "*" in (d, w) else on_date or on_weekday
    return match


def rows(zone, year):
    tz = ZoneInfo(zone)
    begin, end = (datetime(y, 1, 1, tzinfo=timezone.utc) for y in (year, year + 1))
    minutes, moves, t, last = [], [], begin, None
    while t < end:
        local = t.astimezone(tz)
        if last not in (None, local.utcoffset()):
            moves.append(t)
        last = local.utcoffset()
        minutes.append((t, local))
        t += STEP
    civil, t = [], datetime(year - 1, 12, 30)
    while t < datetime(year + 1, 1, 3):
        civil.append((t.replace(tzinfo=tz, fold=0).astimezone(timezone.utc), t))
        t += STEP
    for spec in SCHEDULES:
        match = matcher(spec)
        once = civil if spec.split()[1] != "*" else minutes
        for rule, source in (("calendar", minutes), ("once", once)):
            found = sorted({at for at, t in source if begin <= at < end and match(t)})
            digest = hashlib.sha256("".join("%d\n" % at.timestamp() for at in found).encode()).hexdigest()
            near = [at.strftime("%m-%dT%H:%M") for at in found if any(abs(at - m) <= timedelta(hours=30) for m in moves)]
            yield [zone, str(year), rule, spec, str(len(found)), digest, " ".join(near if spec[0] != "*" else [])]


with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "windows.tsv"), "w") as out:
    for zone, years in ZONES.items():
        for year in years:
            for row in rows(zone, year):
                out.write("\t".join(row) + "\n")
