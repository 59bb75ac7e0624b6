package clad

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// DefaultPort is the port of an address with a host that names none.
const DefaultPort = "7440"

// address is where a daemon is.
type address struct {
	text, network, target string
	// tls is there if TLS is spoken.
	tls *tlsHost
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
		return address{text: text, network: "unix", target: rest}, nil
	case found && scheme == "tcp" && rest != "":
		_, target := hostPort(rest)
		return address{text: text, network: "tcp", target: target}, nil
	case found && scheme == "tcp+tls":
		rest, settings, _ := strings.Cut(rest, "?")
		host, target := hostPort(rest)
		if host == "" {
			return address{}, fmt.Errorf("clad: `%s` is not HOST:PORT", rest)
		}
		over, err := parseTLS(host, settings)
		return address{text: text, network: "tcp", target: target, tls: over}, err
	}
	return address{}, fmt.Errorf("clad: %q is no address: unix://PATH, tcp://HOST:PORT or tcp+tls://HOST:PORT", text)
}

// hostPort answers the host, and what to dial.
func hostPort(text string) (host, target string) {
	host, _, err := net.SplitHostPort(text)
	if err != nil {
		host = strings.Trim(text, "[]")
		text = net.JoinHostPort(host, DefaultPort)
	}
	return host, text
}

// knowsPeer says whether the daemon sees which user connects, so that an id needs no secret.
func (a address) knowsPeer() bool { return a.network == "unix" }

func (a address) dial(ctx context.Context) (net.Conn, error) {
	var config *tls.Config
	if a.tls != nil {
		var err error
		if config, err = a.tls.settings(); err != nil {
			return nil, &ConnectError{Address: a.text, Err: err}
		}
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, a.network, a.target)
	if err != nil {
		return nil, a.fail(err)
	}
	if config == nil {
		return conn, nil
	}
	over := tls.Client(conn, config)
	if err := over.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, a.fail(err)
	}
	return tlsConn{over}, nil
}

// fail is the connect error of an error of the system, or of TLS.
func (a address) fail(err error) *ConnectError {
	if a.tls != nil {
		err = a.tls.explain(err)
	}
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
