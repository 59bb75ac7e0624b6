package clad

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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

// atOnce fails if a call that must not wait does so; its context would let it wait for ever.
func atOnce(t *testing.T, call func(context.Context) (*Ticket, error)) (ticket *Ticket, err error) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticket, err = call(context.Background())
	}()
	select {
	case <-done:
	case <-time.After(testTimeout / 4):
		t.Fatal("the call waits")
	}
	return ticket, err
}

func ended(ticket *Ticket) bool {
	select {
	case <-ticket.Done():
		return true
	default:
		return false
	}
}

func TestDropBelowKeepsErrorsInTheRoomOfInfos(t *testing.T) {
	f, p := startFake(t, smallBuffer(DropBelow(SeverityError, 0)))
	c := f.accept()
	c.welcome(func(w *wire.Welcome) { w.Window = 2 })
	add := func(severity Severity, text string) (*Ticket, error) {
		return atOnce(t, func(ctx context.Context) (*Ticket, error) {
			return p.Append(ctx, sized(severity, text), Durable)
		})
	}
	var infos []*Ticket
	var want []string
	for {
		ticket, err := add(SeverityInfo, fmt.Sprint("info", len(infos)))
		if err != nil {
			if !errors.Is(err, ErrDropped) {
				t.Fatal(err)
			}
			break
		}
		infos = append(infos, ticket)
	}
	waitFor(t, func() bool { return p.Stats().Sent == 2 })
	want = append(want, "info0", "info1")
	for at := 2; at < len(infos); at++ { // the sent ones stay; the oldest of the others go, one for each error
		text := fmt.Sprint("error", at)
		if _, err := add(SeverityError, text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		want = append(want, text)
		wantError(t, infos[at], ReasonDropped, false)
		if ended(infos[0]) || ended(infos[1]) || (at+1 < len(infos) && ended(infos[at+1])) {
			t.Fatalf("more than info %d is dropped", at)
		}
	}
	for _, severity := range []Severity{SeverityError, SeverityInfo, 0} { // nothing less severe is left
		if _, err := add(severity, "late"); !errors.Is(err, ErrDropped) {
			t.Fatalf("%v", err)
		}
	}
	const wait = 20 * time.Millisecond
	since := time.Now()
	if _, err := p.Append(context.Background(), sized(SeverityError, "late"), Durable, DropBelow(SeverityError, wait)); !errors.Is(err, ErrDropped) || time.Since(since) < wait {
		t.Fatalf("%v after %v", err, time.Since(since))
	}
	dropped := 1 + len(infos) - 2 + 3 + 1
	if s := p.Stats(); s.Dropped != uint64(dropped) || len(infos) < 4 {
		t.Fatalf("not %d dropped: %+v", dropped, s)
	}
	got := make(chan error, 1)
	go func() {
		ticket, err := p.Append(within(t), sized(SeverityError, "waits"), Durable, DropBelow(SeverityError, testTimeout))
		if err == nil {
			_, err = ticket.Wait(within(t))
		}
		got <- err
	}()
	waitFor(t, func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.waiters) == 1 })
	want = append(want, "waits")
	texts := c.storeAll(count(len(want) + 1))
	report := ""
	texts = slices.DeleteFunc(texts, func(text string) bool {
		is := strings.Contains(text, " records dropped ")
		if is {
			report = text
		}
		return is
	})
	if !slices.Equal(texts, want) || !strings.HasPrefix(report, fmt.Sprint(dropped, " records dropped ")) {
		t.Errorf("%q, not %q; %q of %d", texts, want, report, dropped)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
	waitFor(t, func() bool { return p.Stats().ReportedDrops == uint64(dropped) })
	p.mu.Lock()
	defer p.mu.Unlock()
	if sent := uint64(len(want) + 1); p.session.nextIndex != sent { // those that were dropped had no sequence
		t.Errorf("%d sequences for %d records", p.session.nextIndex, sent)
	}
}

// Records that wait are grouped, and an error among them does not keep the infos around it.
func TestDropBelowFindsInfosBetweenErrors(t *testing.T) {
	opts := smallBuffer(DropBelow(SeverityError, 0))
	opts.MaxAppendRecords = 0
	_, p := startFake(t, opts)
	var infos []*Ticket
	errorsKept := 0
	for i := 0; ; i++ {
		severity := SeverityInfo
		if i%3 == 2 {
			severity = SeverityError
		}
		ticket, err := atOnce(t, func(ctx context.Context) (*Ticket, error) {
			return p.Append(ctx, sized(severity, fmt.Sprint(i)), Durable)
		})
		if severity == SeverityError {
			if err != nil {
				break
			}
			errorsKept++
		} else if err == nil {
			infos = append(infos, ticket)
		}
	}
	for i, ticket := range infos {
		if !ended(ticket) {
			t.Errorf("an error is dropped, and info %d is kept", i)
		}
	}
	if s := p.Stats(); errorsKept < 6 || s.Submitted-s.Dropped != uint64(errorsKept) || s.BufferedBytes > 12<<10 {
		t.Errorf("%d errors, %+v", errorsKept, s)
	}
}

// A severe record takes the place of less severe ones also where others wait in turn, and never what is theirs.
// The room that is free belongs to those who wait, also where they need more of it.
func TestDropBelowLeavesTheTurnOfThoseThatWait(t *testing.T) {
	_, p := startFake(t, smallBuffer(DropNewest))
	hand := func(severity Severity, bytes int) *Ticket {
		t.Helper()
		record := Record{Time: 1, Severity: severity, Body: String(strings.Repeat("x", bytes))}
		return must(p.Append(within(t), record, Durable))
	}
	var less []*Ticket
	for range 4 {
		hand(SeverityError, 1000)
		less = append(less, hand(SeverityInfo, 200), hand(SeverityInfo, 200))
	}
	waited := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	big := Record{Severity: SeverityInfo, Body: String(strings.Repeat("x", 10<<10))}
	go func() { waited <- p.Post(ctx, big, Durable, WhenFull{}) }()
	waitFor(t, func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.waiters) == 1 })
	before := p.Stats()
	if free := 12<<10 - before.BufferedBytes; free < 1500 {
		t.Fatalf("only %d bytes are free for who waits", free)
	}
	late := func() error {
		_, err := atOnce(t, func(ctx context.Context) (*Ticket, error) {
			return p.Append(ctx, sized(SeverityError, "late"), Durable, DropBelow(SeverityError, 0))
		})
		return err
	}
	for range 2 { // three of the less severe make room for one of these
		if err := late(); err != nil {
			t.Errorf("%v, %+v", err, p.Stats())
		}
		after := p.Stats()
		if after.BufferedBytes > before.BufferedBytes || after.Dropped != before.Dropped+3 {
			t.Errorf("it took what is another's: %+v, before %+v", after, before)
		}
		before = after
	}
	for range 2 { // those that are left do not make enough, and then there is none
		if err := late(); !errors.Is(err, ErrDropped) {
			t.Errorf("%v", err)
		}
	}
	for _, ticket := range less {
		wantError(t, ticket, ReasonDropped, false)
	}
	if s := p.Stats(); s.PendingAppends != 6 || s.Dropped != 10 {
		t.Errorf("%+v", s)
	}
	cancel()
	if err := <-waited; !errors.Is(err, ErrDropped) {
		t.Errorf("%v", err)
	}
}

// refusal is a call that refuses records, and its error.
type refusal struct {
	name    string
	records uint64
	want    error
	call    func() error
}

func (r refusal) isCountedOnce(t *testing.T, p *Producer) {
	t.Helper()
	before := p.Stats()
	err := r.call()
	s := p.Stats()
	if !errors.Is(err, r.want) || s.Submitted-before.Submitted != r.records || s.Dropped-before.Dropped != r.records {
		t.Errorf("%s: %v, not %d records: %+v, before %+v", r.name, err, r.records, s, before)
	}
}

func noTicket(_ *Ticket, err error) error { return err }

func TestEachRefusalIsCountedOnceAndReported(t *testing.T) {
	f, p := startFake(t, smallBuffer(WhenFull{}))
	ctx := within(t)
	span := func(context.Context) (Span, bool) { panic("in Span") }
	log := NewHandler(p, &HandlerOptions{Span: span})
	good, bad, long := Text(9, "x"), Text(9, "\xFF"), Text(9, strings.Repeat("x", 20<<10))
	tooLong := Text(9, strings.Repeat("x", wire.DefaultRecordBytes+1))
	one := func(r Record) func() error { return func() error { return noTicket(p.Append(ctx, r, Durable)) } }
	post := func(r Record) func() error { return func() error { return p.Post(ctx, r, Durable) } }
	batch := func(r ...Record) func() error {
		return func() error { return noTicket(p.AppendBatch(ctx, r, Durable)) }
	}
	for _, r := range []refusal{
		{"append, longer than the buffer", 1, ErrTooLarge, one(long)},
		{"post, longer than the buffer", 1, ErrTooLarge, post(long)},
		{"batch, longer than the buffer", 2, ErrTooLarge, batch(good, long)},
		{"append, longer than a record", 1, ErrTooLarge, one(tooLong)},
		{"post, longer than a record", 1, ErrTooLarge, post(tooLong)},
		{"batch, longer than a record", 2, ErrTooLarge, batch(good, tooLong)},
		{"append, bad", 1, ErrBadRecord, one(bad)},
		{"post, bad", 1, ErrBadRecord, post(bad)},
		{"batch, bad", 3, ErrBadRecord, batch(good, bad, good)},
		{"batch, empty", 0, ErrBadRecord, batch()},
		{"handler, a panic", 1, ErrBadRecord, func() error { return log.Handle(ctx, slog.Record{}) }},
	} {
		r.isCountedOnce(t, p)
	}
	dropped := p.Stats().Dropped
	flushed := make(chan error, 1)
	go func() { flushed <- p.Flush(within(t), Durable) }()
	c := f.accept()
	c.welcome()
	if text := c.storeAll(count(1))[0]; !strings.HasPrefix(text, fmt.Sprint(dropped, " records dropped ")) {
		t.Errorf("%q, not %d", text, dropped)
	}
	if err := <-flushed; err != nil || p.Stats().ReportedDrops != dropped {
		t.Errorf("%v, %+v", err, p.Stats())
	}
}

func TestEachRefusalAfterTheEndIsCountedOnce(t *testing.T) {
	refusesAll := func(p *Producer, want error) {
		t.Helper()
		ctx, x := within(t), Text(9, "x")
		for _, r := range []refusal{
			{"append", 1, want, func() error { return noTicket(p.Append(ctx, x, Durable)) }},
			{"post", 1, want, func() error { return p.Post(ctx, x, Durable) }},
			{"batch", 2, want, func() error { return noTicket(p.AppendBatch(ctx, []Record{x, x}, Durable)) }},
			{"handler", 1, want, func() error { return NewHandler(p, nil).Handle(ctx, slog.Record{}) }},
		} {
			r.isCountedOnce(t, p)
		}
	}
	f, p := startFake(t, quick())
	c := f.accept()
	c.hello()
	c.send((&wire.Error{Code: uint16(CodeProducerFenced), Text: "newer"}).Put(nil, 0))
	c.cut()
	<-p.done
	refusesAll(p, ErrFailed)

	f, p = startFake(t, quick())
	ticket := hand(t, p, "x", Durable)
	c = f.accept()
	c.welcome()
	c.expect(0, Durable, false)
	closed := make(chan error, 1)
	go func() { closed <- p.Close(within(t)) }()
	waitFor(t, func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.life == lifeClosing })
	refusesAll(p, ErrClosed)
	c.nothing() // no report: who logs on and on does not keep it from closing
	c.accepted(0, 100, 3)
	c.mark(Durable, 101, 100, 3)
	wantReceipt(t, ticket, 100, 3, Durable)
	c.ends(true)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	refusesAll(p, ErrClosed)
	if s := p.Stats(); s.Acked+s.Dropped != s.Submitted || s.Submitted != 11 || s.Failed != 0 {
		t.Errorf("%+v", s)
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
	if s := p.Stats(); s.BufferedBytes > 12<<10 || s.Dropped != 4 || s.Submitted != s.PendingAppends+4 {
		t.Errorf("%+v", s)
	}
}

func TestWhoWaitsForRoomIsServedInTurnAndEndsWithTheProducer(t *testing.T) {
	f, p := startFake(t, smallBuffer(WhenFull{}))
	taken := uint64(4)
	for ; p.Stats().BufferedBytes < 11<<10; taken++ {
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
	if s := p.Stats(); s.Submitted != taken || s.Acked+s.Failed+s.Dropped != taken || s.Dropped != uint64(4-len(served)) {
		t.Errorf("not %d: %+v", taken, s)
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
