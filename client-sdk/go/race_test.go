//go:build race

package clad

const raceEnabled = true
