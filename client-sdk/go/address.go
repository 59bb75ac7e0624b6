package clad

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// DefaultPort is the port of a `tcp://` address that names none.
const DefaultPort = "7440"

// address is where a daemon is.
type address struct {
	text, network, target string
}

// parseAddress reads an address; "" is that of the host's daemon.
func parseAddress(text string) (address, error) {
	if text == "" {
		found := false
		if text, found = FindDaemon(); !found {
			return address{}, fmt.Errorf("clad: CLAD_SERVER is not set, and %s is not there", hostSocket)
		}
	}
	scheme, rest, found := strings.Cut(text, "://")
	switch {
	case found && scheme == "unix" && rest != "":
		return address{text, "unix", rest}, nil
	case found && scheme == "tcp" && rest != "":
		if _, _, err := net.SplitHostPort(rest); err != nil {
			rest = net.JoinHostPort(strings.Trim(rest, "[]"), DefaultPort)
		}
		return address{text, "tcp", rest}, nil
	}
	return address{}, fmt.Errorf("clad: %q is no address: unix://PATH or tcp://HOST:PORT", text)
}

// knowsPeer says whether the daemon sees which user connects, so that an id needs no secret.
func (a address) knowsPeer() bool { return a.network == "unix" }

func (a address) dial(ctx context.Context) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, a.network, a.target)
	if err == nil {
		return conn, nil
	}
	return nil, a.fail(err)
}

// fail is the connect error of an error of the system.
func (a address) fail(err error) *ConnectError {
	denied := errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrInvalid)
	return &ConnectError{Address: a.text, Err: err, retryable: !denied}
}

// broken is the connect error of a peer that does not keep to the protocol.
func (a address) broken(format string, args ...any) *ConnectError {
	return &ConnectError{Address: a.text, Err: fmt.Errorf("it does not keep to the protocol: "+format, args...)}
}

// hostSocket is where the host's daemon listens. None of the current folder is looked for: whoever can write there would
// get the records.
const hostSocket = "/run/clad/clad.sock"

// FindDaemon answers the address of this host's daemon: $CLAD_SERVER, else the socket /run/clad/clad.sock. It is false if
// there is none.
func FindDaemon() (string, bool) {
	if server := os.Getenv("CLAD_SERVER"); server != "" {
		return server, true
	}
	if _, err := os.Stat(hostSocket); err != nil {
		return "", false
	}
	return "unix://" + hostSocket, true
}

// backoff is the time until the next try: doubling, bounded, jittered.
type backoff struct {
	first, limit, span time.Duration
	random             uint64
}

func newBackoff(first, limit time.Duration, seed uint64) backoff {
	limit = max(limit, time.Millisecond)
	first = min(max(first, time.Millisecond), limit)
	return backoff{first, limit, first, seed | 1} // xorshift stays at 0 for ever
}

// next is drawn from the upper half of the span.
func (b *backoff) next() time.Duration {
	span := b.span
	b.span = min(span*2, b.limit)
	b.random ^= b.random << 13
	b.random ^= b.random >> 7
	b.random ^= b.random << 17
	half := uint64(span / 2)
	return time.Duration(half + b.random%(half+1))
}

func (b *backoff) reset() { b.span = b.first }
