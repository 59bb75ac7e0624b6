package clad

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"clad/internal/wire"
)

// What happens when the application is faster than the daemon.

// smallBuffer has room for some 8 records of 1000 bytes.
func smallBuffer(full WhenFull) Options {
	opts := quick()
	opts.MaxBufferedBytes, opts.WhenFull = 12<<10, full
	return opts
}

// sized is a text of 1000 bytes that begins so.
func sized(severity Severity, start string) Record {
	return Record{Time: 1, Severity: severity, Body: String(start + strings.Repeat(".", 1000-len(start)))}
}

// stored reads what comes over a connection, acks all of it, and gives the texts to the first dot.
func (p *peer) storeAll(enough func(texts []string) bool) (texts []string) {
	offset, done := uint64(100), false
	for !done {
		h, body := p.frame()
		if h.Type == wire.TFlush {
			level, _ := wire.ParseFlush(body)
			p.send(wire.Watermark{RequestID: h.RequestID, Offset: offset, EpochFirst: 100, Epoch: 3, Level: level}.Put(nil))
			continue
		}
		head, payload, err := wire.ParseAppend(body)
		if err != nil {
			p.t.Fatal(err)
		}
		_, records, err := DecodePayload(payload, head.Count)
		if err != nil {
			p.t.Fatal(err)
		}
		for _, r := range records {
			text, _, _ := strings.Cut(r.Body.Text(), ".")
			texts = append(texts, text)
		}
		p.send(wire.Accepted{FirstSeq: head.FirstSeq, FirstOffset: offset, Count: head.Count, Epoch: 3}.Put(nil))
		offset += uint64(head.Count)
		p.mark(Durable, offset, 100, 3)
		done = enough(texts)
	}
	return texts
}

func count(n int) func([]string) bool { return func(texts []string) bool { return len(texts) >= n } }

func TestDropNewest(t *testing.T) {
	f, p := startFake(t, smallBuffer(DropNewest))
	var dropped, taken int
	for i := range 20 {
		_, err := p.Append(within(t), sized(9, fmt.Sprint(i)), Durable)
		switch {
		case err == nil:
			taken++
			if dropped > 0 {
				t.Fatal("there is room again")
			}
		case errors.Is(err, ErrDropped) && !err.(*AppendError).MaybeWritten:
			dropped++
		default:
			t.Fatal(err)
		}
	}
	if dropped == 0 || taken == 0 || p.Stats().Dropped != uint64(dropped) {
		t.Fatalf("%d taken, %d dropped, %+v", taken, dropped, p.Stats())
	}
	c := f.accept()
	c.welcome()
	texts := c.storeAll(count(taken + 1))
	if texts[0] != "0" || texts[taken] != fmt.Sprintf("%d records dropped between %s", dropped, texts[taken][len(fmt.Sprintf("%d records dropped between ", dropped)):]) {
		t.Errorf("%q", texts)
	}
	waitFor(t, func() bool { return p.Stats().ReportedDrops == uint64(dropped) })
	if s := p.Stats(); s.Submitted != 20 || s.Acked != uint64(taken) || s.Failed != 0 || s.Sent != uint64(taken) {
		t.Errorf("%+v", s)
	}
}

// dropSome makes a producer with drops that it does not report by itself, and that has lost its connection.
func dropSome(t *testing.T) (f *fake, p *Producer, dropped int) {
	f, p = startFake(t, smallBuffer(DropNewest))
	c := f.accept()
	c.welcome()
	p.mu.Lock()
	p.reported = time.Now().Add(time.Hour)
	p.mu.Unlock()
	for i := range 20 {
		if err := p.Post(within(t), sized(9, fmt.Sprint(i)), Durable); err != nil {
			dropped++
		}
	}
	c.storeAll(count(20 - dropped))
	waitFor(t, func() bool { return p.Stats().Acked == uint64(20-dropped) })
	c.cut()
	waitFor(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.session.link == nil
	})
	return f, p, dropped
}

func TestTheEndReportsDropsThoughTheConnectionIsLost(t *testing.T) {
	for name, end := range map[string]func(*Producer) error{
		"flush": func(p *Producer) error { return p.Flush(within(t), Durable) },
		"close": func(p *Producer) error { return p.Close(within(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			f, p, dropped := dropSome(t)
			ended := make(chan error)
			go func() { ended <- end(p) }()
			c := f.accept()
			c.welcome()
			text := c.storeAll(count(1))[0]
			if want := fmt.Sprint(dropped, " records dropped between "); !strings.HasPrefix(text, want) {
				t.Errorf("%q does not begin with %q", text, want)
			}
			if err := <-ended; err != nil || p.Stats().ReportedDrops != uint64(dropped) || dropped == 0 {
				t.Errorf("%v, %d dropped, %+v", err, dropped, p.Stats())
			}
		})
	}
}

func TestAReportThatIsRefusedDoesNotKeepAClosingProducer(t *testing.T) {
	f, p, _ := dropSome(t)
	ended := make(chan error)
	go func() { ended <- p.Close(within(t)) }()
	c := f.accept()
	c.welcome()
	head, _ := c.append()
	c.refuse(head.FirstSeq, CodeRecordTooLarge, 0)
	if err := <-ended; err != nil || p.Stats().ReportedDrops != 0 {
		t.Errorf("%v, %+v", err, p.Stats())
	}
}

func waitFor(t testing.TB, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not come true")
		}
	}
}

func TestDropOldestTakesWhatWasNotSentAndLeavesNoGap(t *testing.T) {
	f, p := startFake(t, smallBuffer(DropOldest))
	c := f.accept()
	c.welcome(func(w *wire.Welcome) { w.Window = 2 })
	var tickets []*Ticket
	for i := range 20 {
		tickets = append(tickets, must(p.Append(within(t), sized(9, fmt.Sprint(i)), Durable)))
		if i < 2 {
			c.expect(uint64(i), Durable, false) // two are sent: they are not dropped
		}
	}
	var dropped []int
	for i, ticket := range tickets {
		select {
		case <-ticket.Done():
			if err := wantError(t, ticket, ReasonDropped, false); !err.Retryable() {
				t.Error(err)
			}
			dropped = append(dropped, i)
		default:
		}
	}
	if len(dropped) == 0 || dropped[0] != 2 || dropped[len(dropped)-1] != 1+len(dropped) {
		t.Fatalf("%v", dropped)
	}
	kept := 20 - len(dropped)
	c.accepted(0, 100, 3)
	c.accepted(1, 101, 3)
	c.mark(Durable, 102, 100, 3)
	for seq := 2; seq < kept; seq++ { // their sequences follow without a gap
		c.expect(uint64(seq), Durable, false)
		c.accepted(uint64(seq), uint64(100+seq), 3)
		c.mark(Durable, uint64(101+seq), 100, 3)
	}
	wantReceipt(t, tickets[19], uint64(99+kept), 3, Durable)
	if s := p.Stats(); s.Submitted != 20 || s.Acked != uint64(kept) || s.Dropped != uint64(len(dropped)) {
		t.Errorf("%+v", s)
	}
}

func TestDropBelowASeverityAndOthersWait(t *testing.T) {
	f, p := startFake(t, smallBuffer(DropBelow(SeverityError, 0)))
	n := 0
	for ; p.Stats().Dropped == 0; n++ {
		p.Append(within(t), sized(SeverityInfo, "info"), Durable)
	}
	if _, err := p.Append(within(t), sized(SeverityError, "late"), Durable, DropBelow(SeverityError, 10*time.Millisecond)); !errors.Is(err, ErrDropped) {
		t.Fatalf("%v", err)
	}
	got := make(chan *Ticket)
	go func() { got <- must(p.Append(within(t), sized(SeverityError, "error"), Durable)) }()
	c := f.accept()
	c.welcome()
	texts := c.storeAll(func(texts []string) bool { return texts[len(texts)-1] == "error" })
	if _, err := (<-got).Wait(within(t)); err != nil {
		t.Fatal(err)
	}
	if len(texts) < n {
		t.Errorf("%q of %d", texts, n)
	}
}

func TestACallNeverBlocksPastItsDeadline(t *testing.T) {
	_, p := startFake(t, smallBuffer(WhenFull{}))
	full := func(ctx context.Context, policy ...WhenFull) error {
		for {
			if _, err := p.Append(ctx, sized(9, "x"), Durable, policy...); err != nil {
				return err
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if err := full(ctx); !errors.Is(err, ErrDropped) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if err := full(context.Background(), WaitAtMost(30*time.Millisecond)); !errors.Is(err, ErrDropped) {
		t.Errorf("%v", err)
	}
	if err := full(context.Background(), WaitAtMost(0)); !errors.Is(err, ErrDropped) {
		t.Errorf("%v", err)
	}
	if _, err := p.Append(context.Background(), Text(9, strings.Repeat("x", 20<<10)), Durable); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v", err)
	}
	if s := p.Stats(); s.BufferedBytes > 12<<10 || s.Dropped != 3 {
		t.Errorf("%+v", s)
	}
}

func TestWhoWaitsForRoomIsServedInTurnAndEndsWithTheProducer(t *testing.T) {
	f, p := startFake(t, smallBuffer(WhenFull{}))
	for p.Stats().BufferedBytes < 11<<10 {
		hand(t, p, strings.Repeat("x", 1000), Durable)
	}
	var order sync.Mutex
	var served []int
	var all sync.WaitGroup
	for i := range 4 {
		all.Add(1)
		go func() {
			defer all.Done()
			if _, err := p.Append(context.Background(), sized(9, fmt.Sprint("waits", i)), Durable); err == nil {
				order.Lock()
				served = append(served, i)
				order.Unlock()
			} else if !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		}()
		waitFor(t, func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.waiters) == i+1 })
	}
	c := f.accept()
	c.welcome(func(w *wire.Welcome) { w.Window = 1 })
	c.expect(0, Durable, false)
	c.accepted(0, 100, 3)
	c.mark(Durable, 101, 100, 3)
	waitFor(t, func() bool { order.Lock(); defer order.Unlock(); return len(served) == 1 })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p.Close(ctx)
	all.Wait()
	if len(served) == 0 || served[0] != 0 {
		t.Errorf("%v", served)
	}
}

// Many goroutines, each policy, a daemon that stalls: what was dropped and what was stored add up to what was handed
// over, and a report says how many.
func TestDropsAndStoredAddUpToLogged(t *testing.T) {
	for name, policy := range map[string]WhenFull{
		"newest": DropNewest, "oldest": DropOldest, "below": DropBelow(SeverityWarn, 20*time.Millisecond),
		"wait": WaitAtMost(time.Millisecond),
	} {
		t.Run(name, func(t *testing.T) {
			opts := smallBuffer(policy)
			opts.MaxAppendRecords = 4
			f, p := startFake(t, opts)
			var stored sync.Map
			go func() {
				c := f.accept()
				c.welcome()
				offset := uint64(100)
				for {
					h, body, err := c.next()
					if err != nil || h.Type == wire.TBye {
						c.conn.Close()
						return
					}
					if h.Type == wire.TFlush {
						c.send(wire.Watermark{RequestID: h.RequestID, Offset: offset, EpochFirst: 100, Epoch: 3, Level: body[0]}.Put(nil))
						continue
					}
					head, payload, _ := wire.ParseAppend(body)
					_, records, _ := DecodePayload(payload, head.Count)
					for _, r := range records {
						if _, twice := stored.LoadOrStore(r.Body.Text(), r.Attributes); twice {
							t.Errorf("%s is there twice", r.Body.Text())
						}
					}
					if offset%50 == 0 {
						time.Sleep(5 * time.Millisecond)
					}
					c.send(wire.Accepted{FirstSeq: head.FirstSeq, FirstOffset: offset, Count: head.Count, Epoch: 3}.Put(nil))
					offset += uint64(head.Count)
					c.mark(Durable, offset, 100, 3)
				}
			}()
			const threads, each = 8, 300
			var all sync.WaitGroup
			var refused sync.Map
			for thread := range threads {
				all.Add(1)
				go func() {
					defer all.Done()
					for i := range each {
						severity := SeverityInfo + Severity(i%2)*4
						text := fmt.Sprintf("%d/%d/%s", thread, i, strings.Repeat("x", 300))
						err := p.Post(within(t), Record{Severity: severity, Body: String(text)}, Durable)
						if err != nil {
							refused.Store(text, true)
						}
					}
				}()
			}
			all.Wait()
			if err := p.Close(within(t)); err != nil {
				t.Fatal(err)
			}
			records, reported := 0, uint64(0)
			stored.Range(func(text, attrs any) bool {
				if a := attrs.([]Attr); len(a) > 0 {
					reported += uint64(a[0].Value.Int())
					return true
				}
				if _, was := refused.Load(text); was {
					t.Errorf("%s was refused and is stored", text)
				}
				records++
				return true
			})
			s := p.Stats()
			if s.Submitted != threads*each || s.Acked != uint64(records) || s.Dropped != s.Submitted-s.Acked || s.Failed != 0 {
				t.Errorf("%d stored, %+v", records, s)
			}
			if s.Dropped == 0 || reported != s.Dropped || s.ReportedDrops != s.Dropped {
				t.Errorf("%d reported, %+v", reported, s)
			}
		})
	}
}
