package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"clad"
)

// The service runs, is asked, and is stopped; the daemon comes later, is killed in between, and has all of it.
func TestTheServiceLogs(t *testing.T) {
	if os.Getenv("CLAD_BIN") == "" {
		t.Skip("no daemon: CLAD_BIN names none")
	}
	dir, err := os.MkdirTemp(os.Getenv("CLAD_TEST_DIR"), "clad-go-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	addr := "unix://" + filepath.Join(dir, "clad-data", "clad.sock")
	daemon := func() *exec.Cmd {
		c := exec.Command(os.Getenv("CLAD_BIN"), "run", "--set", "ingest.tcp.listen=", "--set", "ingest.grpc.listen=",
			"--set", "metrics.listen=", "--set", "journal.segment_bytes=8MiB")
		c.Dir = dir
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan net.Addr)
	ended := make(chan error)
	go func() { ended <- run(ctx, "127.0.0.1:0", addr, func(at net.Addr) { served <- at }) }()
	url := "http://" + (<-served).String()
	ask := func(path string) string {
		answer, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		return string(text)
	}
	ask("/nothing")
	d := daemon()
	if text := ask("/order?item=book"); !strings.HasPrefix(text, "order ") {
		t.Errorf("%q", text)
	}
	d.Process.Kill()
	d.Wait()
	d = daemon()
	defer func() {
		d.Process.Kill()
		d.Wait()
	}()
	if text := ask("/order?item=pen"); !strings.HasPrefix(text, "order ") {
		t.Errorf("%q", text)
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	wait, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r, err := clad.OpenReader(wait, addr, clad.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var lines []string
	for {
		event, err := r.Next(wait)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range event.(*clad.Records).Records {
			lines = append(lines, s.Record.Body.Text())
		}
	}
	want := "serving request order taken request order taken request stopped"
	if got := strings.Join(lines, " "); got != want {
		t.Errorf("%s\n%s", got, want)
	}
}
