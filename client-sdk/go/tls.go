package clad

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
)

// tlsFiles are the contents of the files that an address names.
type tlsFiles struct{ ca, cert, key []byte }

func (f tlsFiles) equal(o tlsFiles) bool {
	return bytes.Equal(f.ca, o.ca) && bytes.Equal(f.cert, o.cert) && bytes.Equal(f.key, o.key)
}

// tlsHost is what an address says of TLS, and the sessions of its connections. One goroutine at a time connects.
type tlsHost struct {
	ca, cert, key, serverName string
	// host is what the daemon's certificate is for where no name is set.
	host string
	// read is what the files had at the last connection, config what was made of it.
	read   tlsFiles
	config *tls.Config
}

// parseTLS reads the settings of an address, with the environment's for those that it leaves out.
func parseTLS(host, settings string) (*tlsHost, error) {
	h := &tlsHost{host: host}
	named := map[string]*string{"ca": &h.ca, "cert": &h.cert, "key": &h.key, "server_name": &h.serverName}
	for _, setting := range strings.Split(settings, "&") {
		if setting == "" {
			continue
		}
		name, value, _ := strings.Cut(setting, "=")
		place := named[name]
		if place == nil || value == "" || *place != "" {
			return nil, fmt.Errorf("clad: `%s` is no setting of TLS, or there twice: ca=FILE, cert=FILE, key=FILE, "+
				"server_name=NAME are, with & between", setting)
		}
		*place = value
	}
	for name, place := range named {
		if *place == "" {
			*place = os.Getenv("CLAD_TLS_" + strings.ToUpper(name))
		}
	}
	return h, nil
}

// settings reads the files. While they are the same, sessions go on where an earlier connection ended.
func (h *tlsHost) settings() (*tls.Config, error) {
	switch {
	case h.ca == "":
		return nil, errors.New("no authority is named that the daemon's certificate is checked by: add ?ca=FILE to the " +
			"address, or set CLAD_TLS_CA")
	case (h.cert == "") != (h.key == ""):
		return nil, errors.New("cert and key are wanted both, or none of them")
	}
	var files tlsFiles
	for _, file := range []struct {
		path string
		into *[]byte
	}{{h.ca, &files.ca}, {h.cert, &files.cert}, {h.key, &files.key}} {
		if file.path == "" {
			continue
		}
		content, err := os.ReadFile(file.path)
		if err != nil {
			var at *fs.PathError
			if errors.As(err, &at) {
				err = at.Err
			}
			return nil, fmt.Errorf("%s: %w", file.path, err)
		}
		*file.into = content
	}
	if h.config != nil && h.read.equal(files) {
		return h.config, nil
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(files.ca) {
		return nil, fmt.Errorf("%s: there is no certificate in it", h.ca)
	}
	config := &tls.Config{
		RootCAs: roots, ServerName: h.name(), MinVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(1),
	}
	if h.cert != "" {
		own, err := tls.X509KeyPair(files.cert, files.key)
		if err != nil {
			return nil, fmt.Errorf("%s and %s do not belong together: %w", h.cert, h.key, err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	h.read, h.config = files, config
	return config, nil
}

func (h *tlsHost) name() string {
	if h.serverName != "" {
		return h.serverName
	}
	return h.host
}

// explain puts an error of TLS in words that a person can act on; others stay.
func (h *tlsHost) explain(err error) error {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var header tls.RecordHeaderError
	var op *net.OpError
	switch {
	case errors.As(err, &authority):
		return fmt.Errorf("TLS: no authority that is trusted here (ca) has issued the daemon's certificate: %w", err)
	case errors.As(err, &name):
		return fmt.Errorf("TLS: the daemon's certificate is not for %s: name what it is for as server_name, if that is "+
			"right: %w", h.name(), err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("TLS: the daemon's certificate has expired or is not valid yet, or the clock of this host is "+
			"wrong: %w", err)
	case errors.As(err, &header):
		return fmt.Errorf("TLS: the daemon does not speak TLS there: use tcp://, or its port for TLS: %w", err)
	case errors.As(err, &op) && op.Op == "remote error":
		return fmt.Errorf("TLS: the daemon refuses this client: it may want a certificate (cert and key) of an authority "+
			"of its own: %w", err)
	}
	return err
}

// tlsConn is closed at once: whoever closes it may hold a lock, and the peer may take nothing.
type tlsConn struct{ *tls.Conn }

func (c tlsConn) Close() error { return c.NetConn().Close() }
