package clad

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority issues the certificates of a test, as files in a folder.
type authority struct {
	t      testing.TB
	folder string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	// ca is its own certificate as a file.
	ca string
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	a := &authority{t: t, folder: t.TempDir(), key: must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key))
	a.cert, a.ca = must(x509.ParseCertificate(der)), a.put("ca.crt", "CERTIFICATE", der)
	return a
}

func (a *authority) put(name, kind string, der []byte) string {
	a.t.Helper()
	path := filepath.Join(a.folder, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// issue makes a certificate and its key. A name with a scheme is a URI, another one of DNS.
func (a *authority) issue(file, name string, end time.Time) (cert, key string) {
	a.t.Helper()
	own := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: end,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if uri, err := url.Parse(name); err == nil && uri.Scheme != "" {
		template.URIs = []*url.URL{uri}
	} else {
		template.DNSNames = []string{name}
	}
	der := must(x509.CreateCertificate(rand.Reader, template, a.cert, &own.PublicKey, a.key))
	return a.put(file+".crt", "CERTIFICATE", der), a.put(file+".key", "PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(own)))
}

var anHour = time.Now().Add(time.Hour)

// newTLSDaemon is a daemon for localhost that speaks nothing but TLS on TCP, with certificates of this authority.
func newTLSDaemon(a *authority, settings ...string) *daemon {
	d := newDaemon(a.t)
	cert, key := a.issue("server", "localhost", anHour)
	d.settings = append([]string{"tls.cert=" + cert, "tls.key=" + key, "tls.client_ca=" + a.ca, "ingest.tcp.tls=true"}, settings...)
	return d
}

func (d *daemon) tls(settings string) string { return "tcp+tls://localhost:" + d.port + "?" + settings }

func TestSettingsOfTLS(t *testing.T) {
	t.Setenv("CLAD_TLS_CA", "/env/ca")
	t.Setenv("CLAD_TLS_SERVER_NAME", "")
	a, err := parseAddress("tcp+tls://logs.example?cert=c&key=k")
	if err != nil || a.tls.ca != "/env/ca" || a.tls.cert != "c" || a.tls.key != "k" || a.tls.name() != "logs.example" {
		t.Fatalf("%+v %v", a.tls, err)
	}
	if a, err = parseAddress("tcp+tls://[::1]:9?server_name=a&ca=b"); err != nil || a.tls.ca != "b" || a.tls.name() != "a" {
		t.Fatalf("%+v %v", a.tls, err)
	}
	for text, want := range map[string]string{
		"tcp+tls://h?ca=a&ca=b":  "`ca=b` is no setting of TLS, or there twice",
		"tcp+tls://h?cipher=x":   "`cipher=x` is no setting of TLS",
		"tcp+tls://h?ca=":        "`ca=` is no setting of TLS",
		"tcp+tls://h?ca":         "`ca` is no setting of TLS",
		"tcp+tls://:7440?ca=a":   "`:7440` is not HOST:PORT",
		"tcp+tls://":             "`` is not HOST:PORT",
		"grpcs://logs.example:1": "is no address",
	} {
		if _, err := parseAddress(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestFilesOfTLSThatDoNotFit: no daemon is needed to know that, and no other try helps.
func TestFilesOfTLSThatDoNotFit(t *testing.T) {
	a := newAuthority(t, "an authority")
	cert, _ := a.issue("one", "one", anHour)
	_, key := a.issue("two", "two", anHour)
	t.Setenv("CLAD_TLS_CA", "")
	for settings, want := range map[string]string{
		"":                             "no authority is named",
		"ca=" + a.ca + "&cert=" + cert: "cert and key are wanted both",
		"ca=/nowhere/ca":               "/nowhere/ca: no such file",
		"ca=" + key:                    key + ": there is no certificate in it",
		"ca=" + a.ca + "&cert=" + cert + "&key=" + key: "do not belong together",
	} {
		_, err := Dial("tcp+tls://localhost:1?"+settings, Options{})
		var no *ConnectError
		if !errors.As(err, &no) || no.Retryable() || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", settings, err)
		}
	}
}

func TestTheNameOfACertificateIsReadBack(t *testing.T) {
	a := newAuthority(t, "an authority")
	d := newTLSDaemon(a, "tls.require_client_cert=true", "ingest.tcp.allow_read=true").start()
	cert, key := a.issue("client", "spiffe://prod/billing", anHour)
	addr := d.tls("ca=" + a.ca + "&cert=" + cert + "&key=" + key)
	long := strings.Repeat("x", 300_000) // of many records of TLS
	p := must(Dial(addr, Options{Component: "billing"}))
	for _, text := range []string{"paid", long} {
		must(p.Send(within(t), Text(SeverityInfo, text), Durable))
	}
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	d.kill()
	d.start()
	all := readAll(t, addr, ReaderOptions{})
	if found := bodies(all); len(found) != 2 || found[0] != "paid" || found[1] != long {
		t.Fatalf("%d records", len(found))
	}
	for _, records := range all {
		meta := records.PeerMeta
		if meta.Identity != "spiffe://prod/billing" || !meta.Address.Addr().IsLoopback() || meta.Transport != 1 {
			t.Errorf("%+v", meta)
		}
	}
}

// TestATokenIsAName: a daemon with rules lets in who has it, and stores its name.
func TestATokenIsAName(t *testing.T) {
	a := newAuthority(t, "an authority")
	dir := t.TempDir()
	file, tokens, config := filepath.Join(dir, "token"), filepath.Join(dir, "tokens"), filepath.Join(dir, "clad.toml")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	token := strings.Repeat("t", 32)
	write(tokens, fmt.Sprintf("ci %x\n", sha256.Sum256([]byte(token))))
	write(config, fmt.Sprintf("[access]\ntokens_file = %q\n[[access.rule]]\nwho = \"token:ci\"\nmay = [\"append\", \"read\"]\n", tokens))
	d := newTLSDaemon(a)
	d.config = config
	d.start()
	addr := d.tls("ca=" + a.ca)
	if said := refused(t, addr); !strings.Contains(said, "may not append") {
		t.Fatal(said)
	}
	t.Setenv("CLAD_TOKEN_FILE", file)
	for text, want := range map[string]string{
		"":                      "a token has 1 to 32 bytes, this one 0",
		strings.Repeat("t", 33): "this one 33",
		"another":               "may not append",
	} {
		write(file, text)
		if said := refused(t, addr); !strings.Contains(said, want) {
			t.Errorf("%q: %s", text, said)
		}
	}
	write(file, token+"\n")
	p := must(Dial(addr, Options{Component: "ci"}))
	must(p.Send(within(t), Text(SeverityInfo, "built"), Durable))
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	for _, records := range readAll(t, addr, ReaderOptions{}) {
		if records.PeerMeta.Identity != "token:ci" {
			t.Errorf("%+v", records.PeerMeta)
		}
	}
}

// refused is what a daemon, or this client of it, says to that address.
func refused(t *testing.T, addr string) string {
	t.Helper()
	p, err := Dial(addr, Options{})
	var no *ConnectError
	if err == nil {
		p.Close(within(t))
		t.Fatalf("%s is served", addr)
	}
	if !errors.As(err, &no) {
		t.Fatalf("%s: %v", addr, err)
	}
	return err.Error()
}

func TestWhoIsNotTrustedHearsWhy(t *testing.T) {
	a, other := newAuthority(t, "an authority"), newAuthority(t, "another")
	d := newTLSDaemon(a, "tls.require_client_cert=true").start()
	cert, key := a.issue("client", "billing", anHour)
	own := "&cert=" + cert + "&key=" + key
	strange, strangeKey := other.issue("client", "billing", anHour)
	ended, endedKey := a.issue("ended", "billing", time.Now().Add(-time.Hour))
	for settings, want := range map[string]string{
		"ca=" + other.ca + own:                        "no authority that is trusted here",
		"ca=" + a.ca + "&server_name=elsewhere" + own: "is not for elsewhere",
		"ca=" + a.ca: "the daemon refuses this client",
		"ca=" + a.ca + "&cert=" + strange + "&key=" + strangeKey: "the daemon refuses this client",
		"ca=" + a.ca + "&cert=" + ended + "&key=" + endedKey:     "the daemon refuses this client",
	} {
		if said := refused(t, d.tls(settings)); !strings.Contains(said, "TLS: ") || !strings.Contains(said, want) {
			t.Errorf("%s: %s", settings, said)
		}
	}
	must(Dial(d.tls("ca="+a.ca+own), Options{})).Close(within(t))

	plain := newDaemon(t).start()
	if said := refused(t, plain.tls("ca="+a.ca)); !strings.Contains(said, "does not speak TLS there") {
		t.Error(said)
	}
}

// TestADaemonWhoseCertificateHasEnded is played: a real one does not start with such a certificate.
func TestADaemonWhoseCertificateHasEnded(t *testing.T) {
	a := newAuthority(t, "an authority")
	l := must(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{must(tls.LoadX509KeyPair(a.issue("server", "localhost", time.Now().Add(-time.Hour))))},
	}))
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			c.(*tls.Conn).Handshake()
			c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if said := refused(t, "tcp+tls://localhost:"+port+"?ca="+a.ca); !strings.Contains(said, "has expired") {
		t.Error(said)
	}
}

// session is what the producer's connection came to.
func (p *Producer) tlsState(t *testing.T) tls.ConnectionState {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conn.(tlsConn).ConnectionState()
}

// cut ends the connection under the producer.
func (p *Producer) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn.Close()
}

// TestAReconnectResumesItsSession, until a file has changed: then the new one is used.
func TestAReconnectResumesItsSession(t *testing.T) {
	a := newAuthority(t, "an authority")
	d := newTLSDaemon(a, "ingest.tcp.allow_read=true").start()
	cert, key := a.issue("client", "spiffe://prod/shop", anHour)
	addr := d.tls("ca=" + a.ca + "&cert=" + cert + "&key=" + key)
	p := must(Dial(addr, Options{BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond}))
	must(p.Send(within(t), Text(SeverityInfo, "0"), Highest))
	if p.tlsState(t).DidResume {
		t.Fatal("a first session is resumed")
	}
	for _, text := range []string{"1", "2", "3"} {
		p.cut()
		must(p.Send(within(t), Text(SeverityInfo, text), Highest))
		if !p.tlsState(t).DidResume {
			t.Fatalf("%s: a new handshake", text)
		}
	}
	a.issue("client", "spiffe://prod/shop", anHour) // renewed, in the same files
	p.cut()
	must(p.Send(within(t), Text(SeverityInfo, "4"), Highest))
	if p.tlsState(t).DidResume {
		t.Fatal("the session of another certificate is resumed")
	}
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	all := readAll(t, addr, ReaderOptions{})
	if found := bodies(all); strings.Join(found, " ") != "0 1 2 3 4" {
		t.Fatalf("%q", found)
	}
	for _, records := range all {
		if records.PeerMeta.Identity != "spiffe://prod/shop" {
			t.Errorf("%+v", records.PeerMeta)
		}
	}
}

// TestCallsThatAreCutShortLoseNothing: a deadline may pass in the middle of a record of TLS.
func TestCallsThatAreCutShortLoseNothing(t *testing.T) {
	const records = 200
	a := newAuthority(t, "an authority")
	d := newTLSDaemon(a, "ingest.tcp.allow_read=true").start()
	addr := d.tls("ca=" + a.ca)
	r := must(OpenReader(within(t), addr, ReaderOptions{Follow: true}))
	defer r.Close()
	p := must(Dial(addr, Options{}))
	for i := range records {
		must(p.Append(within(t), Text(SeverityInfo, fmt.Sprint(i, strings.Repeat(" ", 50_000))), Highest))
	}
	closed := make(chan error, 1)
	go func() { closed <- p.Close(within(t)) }()
	next, cuts := 0, 0
	for begun := time.Now(); next < records && time.Since(begun) < testTimeout; {
		soon, cancel := context.WithTimeout(context.Background(), 100*time.Microsecond)
		event, err := r.Next(soon)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			cuts++
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		if got, ok := event.(*Records); ok {
			for _, stored := range got.Records {
				if text := strings.TrimSpace(stored.Record.Body.Text()); text != fmt.Sprint(next) {
					t.Fatalf("%s, not %d", text, next)
				}
				next++
			}
		}
	}
	if err := <-closed; err != nil || next != records || cuts == 0 {
		t.Fatalf("%d records, %d calls were cut: %v", next, cuts, err)
	}
}

// TestTheEndOfASessionIsNotWaitedFor: the peer takes nothing, and a lock may be held.
func TestTheEndOfASessionIsNotWaitedFor(t *testing.T) {
	a := newAuthority(t, "an authority")
	l := must(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{must(tls.LoadX509KeyPair(a.issue("server", "localhost", anHour)))},
	}))
	defer l.Close()
	go func() {
		c := must(l.Accept())
		c.(*tls.Conn).Handshake()
		<-within(t).Done() // and nothing more is read
		c.Close()
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	c := must(must(parseAddress("tcp+tls://localhost:" + port + "?ca=" + a.ca)).dial(within(t)))
	below := c.(tlsConn).NetConn()
	for block, n := make([]byte, 1<<20), 1; n > 0; {
		below.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		n, _ = below.Write(block)
	}
	begun := time.Now()
	if err := c.Close(); err != nil || time.Since(begun) > 2*time.Second {
		t.Fatalf("%v, after %v", err, time.Since(begun))
	}
}
