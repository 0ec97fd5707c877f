// Package commit runs a worker's statements and the completion of its window, or a
// checkpoint, in one transaction, and answers what became of it.
//
// A commit takes two round trips. The first is BEGIN, onceguard.begin, the statements
// one at a time by the extended protocol, onceguard.complete, and Sync; the second is
// COMMIT, after the command tags and expected row counts were checked; what would end the
// transaction is told by its first word and not sent at all. begin arms a
// barrier: this very transaction can commit only with its completion. The completion
// comes last, so the window's row is not locked while the statements run, and a fence
// that was lost meanwhile is noticed there.
//
// Nothing is retried here: SQL of a worker runs at most once per request. A COMMIT
// whose answer is lost is resolved by fencing, not by reading: package ledger's Resolve
// says "committed", or takes the execution_id away from the transaction in question, and
// only then is the answer "not committed". The attempt then goes on under the new
// execution_id, which the guard saved before it was sent, so the worker may ask again.
//
// # Pieces
//
// With complete: false a transaction ends with onceguard.checkpoint instead: a long job
// commits piece by piece, and the next attempt goes on from the last checkpoint. Each
// sequence commits once; the guard remembers the last one, so a piece needs no round trip
// to ask for it, and the digests of the attempt's pieces: one that is asked again is
// answered, not run. A guard that was restarted knows the last digest only, from the
// checkpoint. So pieces must differ, which checkpoint_seq sees to. An unknown COMMIT of a piece is fenced first; only then does
// reading the checkpoint say what became of it.
//
// # Interactive transactions
//
// Open, Query, Copy and Finish are the same transaction over several requests, one at a
// time in a pod. The same words and tags are refused, and any error ends it: what failed
// is never kept by a savepoint. It ends too when its requests stay away (Limits.Idle, half
// of the lease; begin's own limit for the session is two thirds), when a client leaves
// while its request runs, after Limits.Transaction, with the attempt's right and with the
// guard. A COMMIT that was sent is never given up. The end of a transaction is named by its id and
// body, so asking again answers as before, a restarted guard too.
//
// A COPY streams: the guard holds a network buffer of it, whatever its length. A guard that is
// frozen in a COPY is not idle for Postgres; statement_timeout, which the endpoint sets to
// Limits.Statement, gives its business locks back: long after its lease. A line \. alone is
// refused: Postgres up to 17 would take it for the end and drop the rest without a word.
//
// # Arguments
//
// Arguments are sent as text without a type, so that Postgres infers the type from the
// statement, as it does for a literal in quotes. From JSON:
//
//	string         as it is; also dates, numeric, uuid, bytea ("\\x00ff") and Postgres
//	               arrays in their own text form ("{1,2,3}")
//	number         as it is written, so no digit is lost
//	true, false    true, false
//	null           NULL
//	object, array  its JSON text, for json and jsonb; an array is never a Postgres array,
//	               because [1,2] could mean either
//
// Where that is not enough an argument names its type, any of bool, int2, int4, int8,
// float4, float8, numeric, text, varchar, uuid, date, time, timestamp, timestamptz,
// interval, json, jsonb and bytea (base64), or an array of it, nested if it is rectangular:
//
//	{"$type": "bytea", "value": "AP8="}
//	{"$type": "int8[]", "value": [1, null, 9223372036854775807]}
package commit
