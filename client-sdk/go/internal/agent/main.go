// The chaos agent of the Go client: a program that logs and can be killed. e2e/tests/chaos/main.rs has its protocol.
package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"clad"
)

// connectRetryDelay is between two tries to connect, and after each burst of `keeps`.
const connectRetryDelay = 5 * time.Millisecond

// ended is closed at the end of stdin.
var ended = make(chan struct{})

func hasEnded() bool {
	select {
	case <-ended:
		return true
	default:
		return false
	}
}

var lines sync.Mutex

// say writes one line, which leaves at once.
func say(words ...any) {
	lines.Lock()
	defer lines.Unlock()
	fmt.Println(words...)
}

func main() {
	if len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "agent ADDRESS PRODUCER_ID COMPONENT EPOCH MODE")
		os.Exit(1)
	}
	addr, id, epoch, mode := os.Args[1], os.Args[2], os.Args[4], os.Args[5]
	opts := clad.Options{
		Component: os.Args[3], BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond, Secret: []byte("chaos"),
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	// Levels in turn, and records of an append, so that some are grouped.
	levels := []clad.Level{clad.Written, clad.Durable}
	switch mode {
	case "keeps":
		hex.Decode(opts.ProducerID[:], []byte(id))
		number, _ := strconv.ParseUint(epoch, 10, 32)
		opts.ProducerEpoch = uint32(number)
		keep(addr, opts)
		return
	case "follows":
		follow(addr)
		return
	case "drops-newest":
		opts.WhenFull, opts.MaxAppendRecords = clad.DropNewest, 1
	case "drops-oldest":
		opts.WhenFull, opts.MaxAppendRecords = clad.DropOldest, 5
	case "drops-below":
		opts.WhenFull, opts.MaxAppendRecords = clad.DropBelow(clad.SeverityWarn, 50*time.Millisecond), 20
		levels[0] = clad.Highest
	case "mixed":
		opts.WhenFull, opts.MaxAppendRecords = clad.WaitAtMost(20*time.Millisecond), 3
		levels = []clad.Level{clad.None, clad.Received, clad.Written, clad.Durable}
	default:
		os.Exit(2)
	}
	opts.MaxBufferedBytes = 16 << 10
	drop(addr, opts, levels)
}

// dial goes on once what the log has of this producer survives the daemon's death.
func dial(addr string, opts clad.Options) *clad.Producer {
	for ; ; time.Sleep(connectRetryDelay) {
		p, err := clad.Dial(addr, opts)
		if err != nil {
			continue
		}
		if last, ok := p.LastStored(); !ok || last.Level >= clad.Written {
			return p
		}
		p.Close(context.Background())
	}
}

// keep appends numbers, each once over all starts of this agent.
func keep(addr string, opts clad.Options) {
	ctx := context.Background()
	p := dial(addr, opts)
	next := uint64(0)
	if last, ok := p.LastStored(); ok {
		next = last.Sequence + 1
	}
	var waits sync.WaitGroup
	for ; !hasEnded(); next++ {
		level := clad.Written + clad.Level(next%2)
		ticket, err := p.Append(ctx, clad.Record{Time: 1, Body: clad.String(fmt.Sprint(next))}, level)
		if err != nil {
			say("error", err)
			return
		}
		waits.Add(1)
		go func(n uint64) {
			defer waits.Done()
			if receipt, err := ticket.Wait(ctx); err != nil {
				say("error", err)
			} else {
				say("receipt", n, receipt.FirstOffset)
			}
		}(next)
		if next%8 == 7 {
			time.Sleep(connectRetryDelay)
		}
	}
	waits.Wait()
	if err := p.Close(ctx); err != nil {
		say("error", err)
	}
}

// drop logs from two threads, and never waits long.
func drop(addr string, opts clad.Options, levels []clad.Level) {
	ctx := context.Background()
	p, err := clad.Start(addr, opts)
	if err != nil {
		say("error", err)
		return
	}
	var waits sync.WaitGroup
	for thread := range 2 {
		waits.Add(1)
		go func() {
			defer waits.Done()
			for number := 0; !hasEnded(); number++ {
				record := clad.Record{
					Time: 1, Severity: clad.Severity(9 + 4*(number%2)), Body: clad.String(fmt.Sprint(thread, " ", number)),
				}
				level, which := levels[number%len(levels)], fmt.Sprint(thread, ":", number)
				ticket, err := p.Append(ctx, record, level)
				if err != nil {
					sayOutcome(which, level, clad.Receipt{}, err)
				} else {
					waits.Add(1)
					go func() {
						defer waits.Done()
						receipt, err := ticket.Wait(ctx)
						sayOutcome(which, level, receipt, err)
					}()
				}
				if number%64 == 63 {
					time.Sleep(40 * time.Millisecond)
				}
			}
		}()
	}
	<-ended
	flushed := p.Flush(ctx, clad.Written)
	waits.Wait()
	for _, err := range []error{flushed, p.Close(ctx)} {
		// Records of a lower level may be lost with a daemon, which the flush reports.
		if err != nil && !(errors.Is(err, clad.ErrLost) && levels[0] == clad.None) {
			say("error", err)
		}
	}
	s := p.Stats()
	reported := s.ReportedDrops == s.Dropped || levels[0] == clad.None
	if !reported {
		say("error", s.ReportedDrops, "of", s.Dropped, "drops are reported")
	}
	say("stats", s.Submitted, s.Acked, s.Dropped, s.Failed)
}

func sayOutcome(which string, level clad.Level, receipt clad.Receipt, err error) {
	var e *clad.AppendError
	switch {
	case err == nil && (level == clad.None || level == clad.Received):
		say("sent", which)
	case err == nil:
		say("receipt", which, receipt.FirstOffset)
	case errors.As(err, &e) && !e.MaybeWritten:
		say("never", which)
	default:
		say("error", which, err)
	}
}

// follow reads what is durable, over every death.
func follow(addr string) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-ended
		cancel()
	}()
	opts := clad.ReaderOptions{
		Follow: true, Level: clad.Durable, BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond,
	}
	r, err := clad.OpenReader(ctx, addr, opts)
	for ; err != nil; r, err = clad.OpenReader(ctx, addr, opts) {
		if hasEnded() {
			return
		}
		time.Sleep(connectRetryDelay)
	}
	defer r.Close()
	for {
		event, err := r.Next(ctx)
		switch e := event.(type) {
		case *clad.Records:
			say("records", e.Records[0].Offset, len(e.Records))
		case clad.Gap:
			say("error", fmt.Sprintf("%+v", e))
		}
		if err != nil {
			if !hasEnded() {
				say("error", err)
			}
			return
		}
	}
}
