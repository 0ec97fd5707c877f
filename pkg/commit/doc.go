// Package commit runs a worker's statements and the completion of its window in one
// transaction, and answers what became of it.
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
package commit
