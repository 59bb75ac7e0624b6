//go:build !race

package clad

const raceEnabled = false
