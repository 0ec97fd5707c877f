//go:build race

package guard

// raceDetector makes everything about ten times slower.
const raceDetector = true
