package clad

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	bigBytes   = 60_000
	bigRecords = 60
)

// onADisk is a daemon on a file system of its own, of 96 MiB, in a file.
func onADisk(t *testing.T, settings ...string) *daemon {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("it mounts a file system, as root")
	}
	d := newDaemon(t)
	image, at := filepath.Join(d.dir, "image"), filepath.Join(d.dir, "disk")
	sh(t, "truncate", "--size=96M", image)
	sh(t, "mkfs.ext4", "-q", "-F", "-m", "0", image)
	sh(t, "mkdir", at)
	sh(t, "mount", "-o", "loop", image, at)
	d.dir, d.settings = at, settings
	t.Cleanup(func() {
		exec.Command("fsfreeze", "--unfreeze", at).Run() // it fails where nothing is frozen
		d.kill()
		sh(t, "umount", "--lazy", at)
	})
	return d.start()
}

func sh(t *testing.T, words ...string) {
	t.Helper()
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", words, err, out)
	}
}

// appendBig hands over more than a full disk or a small memory takes.
func appendBig(t *testing.T, p *Producer, n int) (tickets []*Ticket) {
	t.Helper()
	for range n {
		ticket, err := p.Append(context.Background(), Text(SeverityInfo, strings.Repeat("x", bigBytes)), Highest)
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	return tickets
}

// allAreStored looks that each has its receipt, and is in the log once, beside so many records of others.
func allAreStored(t *testing.T, d *daemon, p *Producer, tickets []*Ticket, others int) {
	t.Helper()
	last := uint64(0)
	for _, ticket := range tickets {
		receipt, err := ticket.Wait(within(t))
		if err != nil {
			t.Fatal(err)
		}
		if receipt.Level != Durable || receipt.FirstOffset <= last {
			t.Fatalf("%+v behind %d", receipt, last)
		}
		last = receipt.FirstOffset
	}
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	if n := len(bodies(readAll(t, d.unix(), ReaderOptions{}))); n != 1+len(tickets)+others {
		t.Fatalf("%d records of %d", n, 1+len(tickets)+others)
	}
}

func diskProducer(t *testing.T, d *daemon) *Producer {
	t.Helper()
	opts := Options{Component: "disk", BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond}
	p := must(Dial(d.unix(), opts))
	if _, err := p.Send(within(t), Text(SeverityInfo, "first"), Highest); err != nil {
		t.Fatal(err)
	}
	return p
}

func waitsFor(t *testing.T, p *Producer, code string, look func()) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !strings.Contains(p.WhyWaiting(), code); look() {
		if time.Now().After(end) {
			t.Fatalf("it waits for %q, not %s", p.WhyWaiting(), code)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestAFullDiskRefusesForNowAndLosesNothing(t *testing.T) {
	d := onADisk(t, "journal.segment_bytes=1MiB", "journal.max_record_bytes=64KiB", "limits.max_append_bytes=256KiB",
		"journal.reserve_free=1MiB", "journal.recycle=false")
	p := diskProducer(t, d)
	others := must(os.Create(filepath.Join(d.dir, "others")))
	var free syscall.Statfs_t
	if err := syscall.Statfs(d.dir, &free); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Fallocate(int(others.Fd()), 0, 0, int64(free.Bavail)*free.Bsize-1<<20); err != nil {
		t.Fatal(err)
	}
	others.Close()
	tickets := appendBig(t, p, bigRecords)
	// What the daemon took before it saw the full disk waits there, without a refusal: so there is always one more.
	waitsFor(t, p, "no_space", func() { tickets = append(tickets, appendBig(t, p, 1)...) })
	other := must(Dial(d.unix(), Options{DeliveryTimeout: 100 * time.Millisecond}))
	// It may still fit behind a larger append that did not.
	stored, err := -1, error(nil)
	for ; err == nil && stored < bigRecords; stored++ {
		_, err = other.Send(within(t), Text(SeverityInfo, strings.Repeat("y", bigBytes)), Highest)
	}
	var refused *AppendError
	if !errors.As(err, &refused) || !refused.Retryable() || refused.MaybeWritten || !strings.Contains(err.Error(), "no_space") {
		t.Fatalf("%v", err)
	}
	other.Close(within(t))
	if err := os.Remove(others.Name()); err != nil {
		t.Fatal(err)
	}
	allAreStored(t, d, p, tickets, stored)
}

func TestADiskThatHangsCostsNoCallItsDeadline(t *testing.T) {
	d := onADisk(t, "limits.max_inflight_bytes=1MiB", "limits.max_connection_inflight_bytes=1MiB",
		"limits.max_append_bytes=128KiB", "journal.max_record_bytes=128KiB")
	p := diskProducer(t, d)
	sh(t, "fsfreeze", "--freeze", d.dir)
	tickets := appendBig(t, p, bigRecords)
	seconds, _ := strconv.Atoi(os.Getenv("CLAD_HANG_SECONDS"))
	soon, cancel := context.WithTimeout(context.Background(), time.Duration(max(seconds, 1))*time.Second)
	defer cancel()
	if _, err := tickets[0].Wait(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v", err)
	}
	if err := p.Flush(soon, Highest); err == nil {
		t.Fatal("nothing is durable")
	}
	// The daemon waits for room, and then is busy for what its memory does not take.
	waitsFor(t, p, "busy", func() {})
	sh(t, "fsfreeze", "--unfreeze", d.dir)
	allAreStored(t, d, p, tickets, 0)
}
