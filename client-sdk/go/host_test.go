package clad

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// inNamespace is set where this test runs again, with the host's socket.
const inNamespace = "CLAD_TEST_IN_NAMESPACE"

// The environment names a daemon; without it the host's path does, here in a mount namespace of its own.
func TestTheHostsDaemonIsFound(t *testing.T) {
	if os.Getenv(inNamespace) != "" {
		addr, found := FindDaemon()
		if !found || addr != "unix://"+hostSocket {
			t.Fatalf("%q, %v", addr, found)
		}
		p := must(Dial(addr, Options{Component: "host"}))
		if _, err := p.Send(within(t), Text(SeverityInfo, "found"), Highest); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(within(t)); err != nil {
			t.Fatal(err)
		}
		return
	}
	if os.Getuid() != 0 {
		t.Skip("it mounts a file system, as root")
	}
	d := newDaemon(t).start()
	const mount = `mount -t tmpfs none /run && mkdir /run/clad && ln -s "$1" /run/clad/clad.sock && shift && exec "$@"`
	test := exec.Command("unshare", "--mount", "sh", "-c", mount, "sh", strings.TrimPrefix(d.unix(), "unix://"), os.Args[0],
		"-test.run=^TestTheHostsDaemonIsFound$")
	for _, pair := range os.Environ() {
		if !strings.HasPrefix(pair, "CLAD_SERVER=") {
			test.Env = append(test.Env, pair)
		}
	}
	test.Env = append(test.Env, inNamespace+"=1")
	if out, err := test.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if found := bodies(readAll(t, d.unix(), ReaderOptions{})); len(found) != 1 || found[0] != "found" {
		t.Fatalf("%q", found)
	}
	t.Setenv("CLAD_SERVER", d.unix())
	if addr, found := FindDaemon(); !found || addr != d.unix() {
		t.Fatalf("%q, %v", addr, found)
	}
}
