// Package arch holds tests of the source tree itself: which package may import
// which, what the smallest program may be made of, and that each package says
// what it is for. The tests parse the files in-process: a test that asks the go
// command is answered from the test cache after the rule was broken.
package arch
