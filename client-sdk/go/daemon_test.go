package clad

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A real daemon: the binary of $CLAD_BIN. Without it the tests that need one are skipped; `cargo xtask ci sdk-go` sets
// it, and counts what was skipped as a failure.

type daemon struct {
	t      testing.TB
	dir    string
	port   string
	policy string
	// Further settings, KEY=VALUE.
	settings []string
	// Its file of configuration; none is the defaults.
	config string
	cmd    *exec.Cmd
	said   bytes.Buffer
}

func newDaemon(t testing.TB) *daemon {
	t.Helper()
	if os.Getenv("CLAD_BIN") == "" {
		t.Skip("no daemon: CLAD_BIN names none")
	}
	parent := os.Getenv("CLAD_TEST_DIR")
	dir, err := os.MkdirTemp(parent, "clad-go-")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	d := &daemon{t: t, dir: dir, port: port, policy: "group_commit"}
	t.Cleanup(func() {
		d.kill()
		if t.Failed() {
			t.Logf("the daemon in %s said:\n%s", dir, d.said.String())
			return
		}
		os.RemoveAll(dir)
	})
	return d
}

func (d *daemon) unix() string { return "unix://" + filepath.Join(d.dir, "clad-data", "clad.sock") }
func (d *daemon) tcp() string  { return "tcp://127.0.0.1:" + d.port }

func (d *daemon) start() *daemon {
	d.t.Helper()
	d.cmd = exec.Command(os.Getenv("CLAD_BIN"), "run", "--set", "ingest.tcp.listen=127.0.0.1:"+d.port,
		"--set", "ingest.grpc.listen=", "--set", "metrics.listen=", "--set", "journal.durability="+d.policy,
		"--set", "journal.segment_bytes=8MiB", "--set", "access.read_group=", "--set", "journal.power_loss_protected=true")
	if d.config != "" {
		d.cmd.Args = append(d.cmd.Args, "--config", d.config)
	}
	for _, setting := range d.settings {
		d.cmd.Args = append(d.cmd.Args, "--set", setting)
	}
	d.cmd.Dir = d.dir
	d.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + d.dir}
	d.cmd.Stdout, d.cmd.Stderr = &d.said, &d.said
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	// Whoever reads the socket's file may meet an earlier daemon's: a connection says that this one listens.
	for range 1000 {
		if d.listens("unix", strings.TrimPrefix(d.unix(), "unix://")) && d.listens("tcp", "127.0.0.1:"+d.port) {
			return d
		}
		time.Sleep(10 * time.Millisecond)
	}
	d.t.Fatalf("the daemon does not listen:\n%s", d.said.String())
	return d
}

func (d *daemon) listens(network, target string) bool {
	c, err := net.Dial(network, target)
	if err == nil {
		c.Close()
	}
	return err == nil
}

// stop returns when each of its threads has stopped: one that runs may still answer.
func (d *daemon) stop() {
	d.t.Helper()
	var status syscall.WaitStatus
	pid := d.cmd.Process.Pid
	if err := d.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		d.t.Fatal(err)
	}
	if _, err := syscall.Wait4(pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		d.t.Fatalf("it has not stopped: %v", err)
	}
}

func (d *daemon) kill() {
	if d.cmd != nil {
		d.cmd.Process.Kill()
		d.cmd.Wait()
		d.cmd = nil
	}
}

// readAll reads the log from its start to its end.
func readAll(t testing.TB, addr string, opts ReaderOptions) (all []*Records) {
	t.Helper()
	ctx := context.Background()
	r, err := OpenReader(ctx, addr, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		event, err := r.Next(ctx)
		if err != nil {
			if err.Error() != "EOF" {
				t.Fatal(err)
			}
			return all
		}
		if records, ok := event.(*Records); ok {
			all = append(all, records)
		}
	}
}

func bodies(all []*Records) (texts []string) {
	for _, records := range all {
		for _, stored := range records.Records {
			texts = append(texts, stored.Record.Body.Text())
		}
	}
	return texts
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func TestRecordsComeBackAsTheyWereSent(t *testing.T) {
	d := newDaemon(t).start()
	ctx := context.Background()
	for _, addr := range []string{d.unix(), d.tcp()} {
		p := must(Dial(addr, Options{Component: "billing"}))
		record := Text(SeverityInfo, "paid")
		record.Attributes = []Attr{KV("amount", 12.5), KV("items", Array(Int(1), String("a"), Map(KV("k", true))))}
		record.TraceID, record.SpanID, record.EventName = make([]byte, 16), make([]byte, 8), "payment"
		receipt, err := p.Send(ctx, record, Durable)
		if err != nil {
			t.Fatal(err)
		}
		info, _ := p.Log()
		if receipt.Level != Durable || receipt.LogID != info.LogID || receipt.Count != 1 {
			t.Fatalf("%+v %+v", receipt, info)
		}
		if err := p.Close(ctx); err != nil {
			t.Fatal(err)
		}
		stored := readAll(t, d.unix(), ReaderOptions{From: FromOffset(receipt.FirstOffset)})
		if len(stored) != 1 || len(stored[0].Records) != 1 {
			t.Fatalf("%+v", stored)
		}
		got := stored[0]
		if got.Group.Component() != "billing" || got.ProducerID != p.ID() || got.PeerMeta.PID == 0 && addr == d.unix() {
			t.Errorf("%+v", got)
		}
		if fmt.Sprint(got.Records[0].Record) != fmt.Sprint(record) || got.Records[0].Offset != receipt.FirstOffset {
			t.Errorf("\n%+v\n%+v", got.Records[0].Record, record)
		}
	}
}

// TestADaemonThatIsReplaced: what was sent to the one before may be in its log, and is not sent to the other.
func TestADaemonThatIsReplaced(t *testing.T) {
	d := newDaemon(t).start()
	p := must(Dial(d.unix(), Options{BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond}))
	before := must(p.Send(within(t), Text(SeverityInfo, "before"), Highest))
	d.stop()
	ticket := must(p.Append(within(t), Text(SeverityInfo, "sent"), Highest))
	for p.Stats().Sent < 2 {
		time.Sleep(time.Millisecond)
	}
	d.kill()
	if err := os.RemoveAll(filepath.Join(d.dir, "clad-data")); err != nil {
		t.Fatal(err)
	}
	d.start()
	_, err := ticket.Wait(within(t))
	if lost, ok := err.(*AppendError); !ok || !errors.Is(err, ErrLogChanged) || !lost.MaybeWritten {
		t.Fatalf("%v", err)
	}
	after := must(p.Send(within(t), Text(SeverityInfo, "after"), Highest))
	if after.LogID == before.LogID || after.FirstOffset != 0 {
		t.Fatalf("%+v after %+v", after, before)
	}
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	if found := bodies(readAll(t, d.unix(), ReaderOptions{})); fmt.Sprint(found) != "[after]" {
		t.Fatalf("%v", found)
	}
}

func TestASocketThatVanishesIsWaitedFor(t *testing.T) {
	d := newDaemon(t).start()
	p := must(Dial(d.unix(), Options{BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond}))
	if err := os.Remove(strings.TrimPrefix(d.unix(), "unix://")); err != nil {
		t.Fatal(err)
	}
	must(p.Send(within(t), Text(SeverityInfo, "connected"), Highest)) // its connection is there
	_, err := Dial(d.unix(), Options{})
	if none, ok := err.(*ConnectError); !ok || !none.Retryable() {
		t.Fatalf("%v", err)
	}
	d.kill()
	ticket := must(p.Append(within(t), Text(SeverityInfo, "waits"), Highest))
	soon, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := ticket.Wait(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v", err)
	}
	d.start()
	must(ticket.Wait(within(t)))
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	if found := bodies(readAll(t, d.unix(), ReaderOptions{})); fmt.Sprint(found) != "[connected waits]" {
		t.Fatalf("%v", found)
	}
}
