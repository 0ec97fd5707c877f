// Package arch holds tests of the source tree itself: which package may import
// which, what the smallest program may be made of, that each package says what it
// is for, and that the tests exist which the guarantees rely on. The tests parse the
// files in-process: a test that asks the go command is answered from the test cache
// after the rule was broken.
package arch
