// Package postgres runs private Postgres servers for tests and for the demo: each in
// a directory of its own, never as root, on a Unix socket and on TCP.
//
// Tests call [Database] for a fresh database; the server behind it is started once
// per test binary and stopped by [Main]:
//
//	func TestMain(m *testing.M) { postgres.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		url := postgres.Database(t)
//		...
//	}
//
// Without Postgres on the machine a test is skipped, except when CI=true: there it
// fails, so that a missing package can never look like a passing test.
package postgres
