// Package pgproxy is a TCP proxy that understands Postgres: it passes on one protocol
// message at a time, knows each by connection, direction, index and type, and fails at a
// chosen one as a network, a node or a server would.
//
//	p, err := pgproxy.Start("127.0.0.1:5432", nil)
//	url, err := p.URL(serverURL)            // the same database, through the proxy
//	p.Watch(pgproxy.At(point, pgproxy.Fault{Kind: pgproxy.Cut}))
//	...                                     // use url
//	p.Seen(), p.Fired()                     // what came by, and where it failed
//
// A socket is never reset while something that was passed on may still be on its way: the
// end that is cut off is told so by the end of the stream, after all that it was sent. So
// "after" means that the message has arrived.
package pgproxy
