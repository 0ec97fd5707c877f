// Package cuts_test proves that a broken connection fools nobody: each operation of the
// ledger and of its clients is cut at every message of the protocol, in both directions,
// before and after, and half-open; then the client does what the product's client does.
// Whatever was answered must be true in the database, then and later.
package cuts_test
