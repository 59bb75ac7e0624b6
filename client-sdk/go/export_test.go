package clad

import "testing"

// DaemonForTests starts a daemon and answers its address.
func DaemonForTests(t *testing.T) string { return newDaemon(t).start().unix() }
