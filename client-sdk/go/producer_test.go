package clad

import (
	"context"
	"errors"
	"testing"
	"time"

	"clad/internal/wire"
)

func TestEachLevelIsReachedByItsOwnAnswer(t *testing.T) {
	f, p := startFake(t, quick())
	var tickets []*Ticket
	for _, level := range []Level{Received, Written, Durable, Highest} {
		tickets = append(tickets, hand(t, p, "x", level))
	}
	c := f.accept()
	if h := c.welcome(); h.Intent != wire.IntentAppend || h.Name != "t" || h.ProducerID != p.ID() {
		t.Fatalf("%+v", h)
	}
	for i, level := range []Level{Received, Written, Durable, Durable} {
		c.expect(uint64(i), level, false)
	}
	for i := range uint64(4) {
		c.accepted(i, 100+i, 3)
	}
	wantReceipt(t, tickets[0], 100, 3, Received)
	wantUnresolved(t, tickets[1])
	c.mark(Written, 104, 100, 3)
	wantReceipt(t, tickets[1], 101, 3, Written)
	wantUnresolved(t, tickets[2])
	c.mark(Durable, 103, 100, 3)
	wantReceipt(t, tickets[2], 102, 3, Durable)
	wantUnresolved(t, tickets[3])
	c.mark(Durable, 104, 100, 3)
	wantReceipt(t, tickets[3], 103, 3, Durable)
}

func TestLevelNoneIsDoneWhenItIsSentAndWhatFollowsMayJump(t *testing.T) {
	f, p := startFake(t, quick())
	none := hand(t, p, "none", None)
	next := hand(t, p, "next", Received)
	c := f.accept()
	c.welcome()
	c.expect(0, None, false)
	c.expect(1, Received, true)
	if r, err := none.Wait(within(t)); err != nil || r.Level != None || r.FirstOffset != 0 {
		t.Fatalf("%+v %v", r, err)
	}
	c.accepted(1, 100, 3)
	wantReceipt(t, next, 100, 3, Received)
}

func TestRecordsThatWaitGoTogetherAndEachHasItsOffset(t *testing.T) {
	opts := quick()
	opts.MaxAppendRecords = 3
	f, p := startFake(t, opts)
	var tickets []*Ticket
	for range 5 {
		tickets = append(tickets, hand(t, p, "x", Durable))
	}
	other := hand(t, p, "other level", Written)
	c := f.accept()
	c.welcome()
	for i, want := range []uint32{3, 2, 1} {
		if head, records := c.append(); head.Count != want || len(records) != int(want) {
			t.Fatalf("append %d: %+v", i, head)
		}
	}
	for _, a := range []wire.Accepted{{FirstSeq: 0, FirstOffset: 100, Count: 3, Epoch: 3},
		{FirstSeq: 3, FirstOffset: 203, Count: 2, Epoch: 3}, {FirstSeq: 5, FirstOffset: 305, Count: 1, Epoch: 3}} {
		c.send(a.Put(nil))
	}
	c.mark(Durable, 400, 100, 3)
	for i, offset := range []uint64{100, 101, 102, 203, 204} {
		wantReceipt(t, tickets[i], offset, 3, Durable)
	}
	wantReceipt(t, other, 305, 3, Written)
}

func TestWhatIsUnansweredIsSentAgainAndAnsweredWithItsOffset(t *testing.T) {
	f, p := startFake(t, quick())
	a, b := hand(t, p, "a", Durable), hand(t, p, "b", Durable)
	c := f.accept()
	c.welcome()
	c.expect(0, Durable, false)
	c.expect(1, Durable, false)
	c.accepted(0, 100, 3)
	c.cut()
	c = f.accept()
	c.welcome(lastStored(0, 100))
	c.expect(0, Durable, false)
	c.expect(1, Durable, false)
	c.send(wire.Accepted{FirstSeq: 0, FirstOffset: 100, Count: 1, Epoch: 3, StoredBefore: true}.Put(nil))
	c.accepted(1, 150, 3)
	c.mark(Durable, 200, 100, 3)
	wantReceipt(t, a, 100, 3, Durable)
	wantReceipt(t, b, 150, 3, Durable)
	if s := p.Stats(); s.Sent != 2 || s.Resent != 2 || s.Reconnects != 1 || s.Acked != 2 {
		t.Errorf("%+v", s)
	}
}

func TestTheWatermarkOfWelcomeCoversWhatWasAccepted(t *testing.T) {
	f, p := startFake(t, quick())
	a := hand(t, p, "a", Durable)
	c := f.accept()
	c.welcome()
	c.expect(0, Durable, false)
	c.accepted(0, 100, 3)
	hand(t, p, "b", Durable)
	c.expect(1, Durable, false)
	c.cut()
	c = f.accept()
	c.welcome(lastStored(0, 100), func(w *wire.Welcome) { w.Durable = 101 })
	c.expect(1, Durable, false)
	wantReceipt(t, a, 100, 3, Durable)
}

func TestWatermarksOverEpochs(t *testing.T) {
	// Accepted at 100 of epoch 3. A watermark of epoch 4 that began at 101 covers it; of one that began at 100 it does
	// not, nor does any of epoch 5: then it is sent again.
	for _, test := range []struct {
		epoch   uint32
		first   uint64
		covered bool
	}{{4, 101, true}, {4, 100, false}, {5, 200, false}} {
		f, p := startFake(t, quick())
		a := hand(t, p, "a", Durable)
		c := f.accept()
		c.welcome()
		c.expect(0, Durable, false)
		c.accepted(0, 100, 3)
		c.mark(Durable, 300, test.first, test.epoch)
		if test.covered {
			wantReceipt(t, a, 100, 3, Durable)
			continue
		}
		c.expect(0, Durable, false)
		wantUnresolved(t, a)
		c.accepted(0, 250, test.epoch)
		wantReceipt(t, a, 250, test.epoch, Durable)
	}
}

func TestAReconnectIntoAnotherEpochBelievesNoPlace(t *testing.T) {
	f, p := startFake(t, quick())
	a := hand(t, p, "a", Durable)
	c := f.accept()
	c.welcome()
	c.expect(0, Durable, false)
	c.accepted(0, 100, 3)
	time.Sleep(20 * time.Millisecond)
	c.cut()
	c = f.accept()
	c.welcome(lastStored(0, 100), func(w *wire.Welcome) { w.Epoch, w.EpochFirst, w.Durable = 4, 150, 200 })
	c.expect(0, Durable, false)
	wantUnresolved(t, a)
	c.send(wire.Accepted{FirstSeq: 0, FirstOffset: 100, Count: 1, Epoch: 4, StoredBefore: true}.Put(nil))
	wantReceipt(t, a, 100, 4, Durable)
}

func TestAfterARefusalForNowNothingIsOvertaken(t *testing.T) {
	f, p := startFake(t, quick())
	a, b := hand(t, p, "a", Received), hand(t, p, "b", Received)
	c := f.accept()
	c.welcome()
	c.expect(0, Received, false)
	c.expect(1, Received, false)
	c.refuse(0, CodeBusy, wire.FlagRetryable)
	c.nothing() // before what is in flight is answered
	c.refuse(1, CodeSequenceGap, wire.FlagRetryable, expecting(0))
	c.expect(0, Received, false)
	c.expect(1, Received, false)
	c.accepted(0, 100, 3)
	c.accepted(1, 101, 3)
	wantReceipt(t, a, 100, 3, Received)
	wantReceipt(t, b, 101, 3, Received)
}

func TestARefusalForGoodIsAnErrorAndTheNextJumps(t *testing.T) {
	f, p := startFake(t, quick())
	a, b := hand(t, p, "a", Received), hand(t, p, "b", Received)
	c := f.accept()
	c.welcome()
	c.expect(0, Received, false)
	c.expect(1, Received, false)
	c.refuse(0, CodeBadRecord, 0, func(e *wire.Error) { i := uint32(0); e.RecordIndex = &i })
	c.refuse(1, CodeSequenceGap, wire.FlagRetryable, expecting(0))
	err := wantError(t, a, ReasonRefused, false)
	var refusal *Refusal
	if err.Code() != CodeBadRecord || err.Retryable() || !errors.As(err, &refusal) || refusal.Record != 0 {
		t.Errorf("%v", err)
	}
	c.expect(1, Received, true)
	c.accepted(1, 100, 3)
	wantReceipt(t, b, 100, 3, Received)
}

func TestOnlyTheOldestWithoutAnOutcomeJumps(t *testing.T) {
	f, p := startFake(t, quick())
	a, b, last := hand(t, p, "a", Durable), hand(t, p, "b", Durable), hand(t, p, "c", Received)
	c := f.accept()
	c.welcome()
	c.expect(0, Durable, false)
	c.expect(1, Durable, false)
	c.expect(2, Received, false)
	c.accepted(0, 100, 3)
	c.refuse(1, CodeBadRecord, 0)
	c.refuse(2, CodeSequenceGap, wire.FlagRetryable, expecting(1))
	wantError(t, b, ReasonRefused, false)
	c.nothing() // a may still have to be sent again; a jump would make it unstorable
	c.mark(Durable, 101, 100, 3)
	wantReceipt(t, a, 100, 3, Durable)
	c.expect(2, Received, true)
	c.accepted(2, 101, 3)
	wantReceipt(t, last, 101, 3, Received)
}

func TestARefusalAfterAcceptedIsSentAgain(t *testing.T) {
	f, p := startFake(t, quick())
	a := hand(t, p, "a", Durable)
	c := f.accept()
	c.welcome()
	c.expect(0, Durable, false)
	c.accepted(0, 100, 3)
	c.refuse(0, CodeJournalFailed, wire.FlagRetryable|wire.FlagMaybeWritten)
	c.expect(0, Durable, false)
	c.accepted(0, 100, 4)
	c.mark(Durable, 101, 100, 4)
	wantReceipt(t, a, 100, 4, Durable)
}

func TestTheWindowIsKept(t *testing.T) {
	f, p := startFake(t, quick())
	a, b := hand(t, p, "a", Received), hand(t, p, "b", Received)
	c := f.accept()
	c.welcome(func(w *wire.Welcome) { w.Window = 1 })
	c.expect(0, Received, false)
	c.nothing()
	c.accepted(0, 100, 3)
	c.expect(1, Received, false)
	c.accepted(1, 101, 3)
	wantReceipt(t, a, 100, 3, Received)
	wantReceipt(t, b, 101, 3, Received)
}

func TestAFencedProducerIsFinal(t *testing.T) {
	f, p := startFake(t, quick())
	a, b := hand(t, p, "a", Durable), hand(t, p, "b", Durable)
	c := f.accept()
	c.welcome()
	c.expect(0, Durable, false)
	c.cut()
	c = f.accept()
	c.hello()
	c.send((&wire.Error{Code: uint16(CodeProducerFenced), Text: "newer"}).Put(nil, 0))
	c.cut()
	if err := wantError(t, a, ReasonFailed, true); err.Code() != CodeProducerFenced || err.Retryable() {
		t.Errorf("%v", err)
	}
	wantError(t, b, ReasonFailed, true)
	if _, err := p.Append(within(t), Text(9, "c"), Durable); !errors.Is(err, ErrFailed) {
		t.Errorf("%v", err)
	}
	if err := p.Flush(within(t), Durable); !errors.Is(err, ErrFailed) {
		t.Errorf("%v", err)
	}
}

func TestAnotherLogOrAForgottenProducerIsATypedError(t *testing.T) {
	for reason, change := range map[Reason]func(*wire.Welcome){
		ReasonLogChanged: func(w *wire.Welcome) { w.LogID = logB },
		ReasonForgotten:  func(w *wire.Welcome) { w.Durable = 100 },
	} {
		f, p := startFake(t, quick())
		a := hand(t, p, "a", Durable)
		c := f.accept()
		c.welcome()
		c.expect(0, Durable, false)
		c.accepted(0, 100, 3)
		b := hand(t, p, "b", Durable)
		c.expect(1, Durable, false)
		c.refuse(1, CodeBusy, wire.FlagRetryable, func(e *wire.Error) { ms := uint32(60000); e.RetryMillis = &ms })
		c.cut()
		c = f.accept()
		c.welcome(change)
		wantError(t, a, reason, true)
		// What is certainly not written is sent to the log that there is, from its own sequence on.
		head, _ := c.append()
		c.send(wire.Accepted{FirstSeq: head.FirstSeq, FirstOffset: 500, Count: 1, Epoch: 3}.Put(nil))
		c.mark(Durable, 501, 100, 3)
		wantReceipt(t, b, 500, 3, Durable)
	}
}

func TestASharedProducerIsFinal(t *testing.T) {
	f, p := startFake(t, quick())
	a := hand(t, p, "a", Durable)
	c := f.accept()
	c.welcome()
	c.expect(0, Durable, false)
	c.cut()
	f.accept().welcome(lastStored(7, 107))
	if err := wantError(t, a, ReasonFailed, true); !errors.Is(err, ErrProducerShared) {
		t.Errorf("%v", err)
	}
}

func TestOneThatEndsTheConnectionEndsAlone(t *testing.T) {
	f, p := startFake(t, quick())
	a, b := hand(t, p, "a", Received), hand(t, p, "b", Received)
	tooBig := func(c *peer) {
		c.send((&wire.Error{Code: uint16(CodeAppendTooLarge), Text: "too long"}).Put(nil, 0))
		c.cut()
	}
	c := f.accept()
	c.welcome()
	c.expect(0, Received, false)
	c.expect(1, Received, false)
	tooBig(c) // one of two: they are sent one at a time
	c = f.accept()
	c.welcome()
	c.expect(0, Received, false)
	tooBig(c)
	if err := wantError(t, a, ReasonRefused, true); err.Code() != CodeAppendTooLarge {
		t.Errorf("%v", err)
	}
	c = f.accept()
	c.welcome()
	c.expect(1, Received, true)
	c.accepted(1, 100, 3)
	wantReceipt(t, b, 100, 3, Received)
}

func TestByeIsSaidWhenAllIsAnsweredAndNotByWhoComesBack(t *testing.T) {
	for _, comesBack := range []bool{false, true} {
		opts := quick()
		if comesBack {
			opts.ProducerID, opts.ProducerEpoch = ProducerID{7}, 4
		}
		f, p := startFake(t, opts)
		a := hand(t, p, "a", Durable)
		c := f.accept()
		if h := c.welcome(lastStored(41, 99)); comesBack && (h.ProducerID != ProducerID{7} || h.ProducerEpoch != 4) {
			t.Fatalf("%+v", h)
		}
		c.expect(42, Durable, false)
		closed := make(chan error, 1)
		go func() { closed <- p.Close(within(t)) }()
		select {
		case err := <-closed:
			t.Fatalf("closed before the answer: %v", err)
		case <-time.After(30 * time.Millisecond):
		}
		if _, err := p.Append(within(t), Text(9, "late"), Durable); !errors.Is(err, ErrClosed) {
			t.Errorf("%v", err)
		}
		c.accepted(42, 100, 3)
		c.mark(Durable, 101, 100, 3)
		c.ends(!comesBack)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		wantReceipt(t, a, 100, 3, Durable)
		if last, ok := p.LastStored(); !ok || last.Sequence != 41 {
			t.Errorf("%+v", last)
		}
	}
}

func TestFlushAsksForWhatIsNotThereYet(t *testing.T) {
	f, p := startFake(t, quick())
	a := hand(t, p, "a", Received)
	c := f.accept()
	c.welcome()
	c.expect(0, Received, false)
	flushed := make(chan error, 1)
	go func() { flushed <- p.Flush(within(t), Durable) }()
	time.Sleep(20 * time.Millisecond)
	c.accepted(0, 100, 3)
	wantReceipt(t, a, 100, 3, Received)
	c.flush(Durable, 101, 100, 3)
	if err := <-flushed; err != nil {
		t.Fatal(err)
	}
	if err := p.Flush(within(t), Durable); err != nil { // nothing to ask
		t.Fatal(err)
	}
}

func TestALossIsReportedByTheNextFlushOnce(t *testing.T) {
	f, p := startFake(t, quick())
	a := hand(t, p, "a", Received)
	c := f.accept()
	c.welcome()
	c.expect(0, Received, false)
	c.accepted(0, 100, 3)
	wantReceipt(t, a, 100, 3, Received)
	c.cut()
	b := hand(t, p, "b", Received)
	c = f.accept()
	c.welcome(func(w *wire.Welcome) { w.Epoch, w.EpochFirst = 4, 100 })
	c.expect(1, Received, true)
	c.accepted(1, 100, 4)
	wantReceipt(t, b, 100, 4, Received)
	if err := p.Flush(within(t), Received); !errors.Is(err, ErrLost) {
		t.Fatalf("%v", err)
	}
	if err := p.Flush(within(t), Received); err != nil {
		t.Fatal(err)
	}
}

func TestAnErrorNobodyWaitsForIsReportedByTheNextFlush(t *testing.T) {
	f, p := startFake(t, quick())
	if err := p.Post(within(t), Record{}, Received); err != nil {
		t.Fatal(err)
	}
	c := f.accept()
	c.welcome()
	c.expect(0, Received, false)
	c.refuse(0, CodeInternal, wire.FlagMaybeWritten)
	if err := p.Flush(within(t), Received); !errors.Is(err, ErrRefused) {
		t.Fatalf("%v", err)
	}
	if err := p.Flush(within(t), Received); err != nil {
		t.Fatal(err)
	}
}

func TestPingKeepsTheConnectionAndASilentDaemonIsLeft(t *testing.T) {
	opts := quick()
	opts.pingAfter, opts.pongWithin = 20*time.Millisecond, 200*time.Millisecond
	f, p := startFake(t, opts)
	c := f.accept()
	c.welcome()
	for range 3 { // nothing to do, and still a sign of life
		var head [wire.HeaderBytes + 4]byte
		if _, err := c.in.Read(head[:]); err != nil || head[1] != byte(wire.TPing) {
			t.Fatalf("%x %v", head, err)
		}
		c.send(wire.PutControl(nil, wire.TPong, 1, nil))
	}
	a := hand(t, p, "a", Received)
	c.expect(0, Received, false)
	c = f.accept() // silence, and it comes back
	c.welcome()
	c.expect(0, Received, false)
	c.accepted(0, 100, 3)
	wantReceipt(t, a, 100, 3, Received)
}

func TestNoDaemonEndsInADeliveryTimeout(t *testing.T) {
	opts := quick()
	opts.DeliveryTimeout = 50 * time.Millisecond
	p := must(Start("unix:///nonexistent/clad.sock", opts))
	a := hand(t, p, "a", Durable)
	if err := wantError(t, a, ReasonDeliveryTimeout, false); !err.Retryable() {
		t.Errorf("%v", err)
	}
	if err := p.Post(within(t), Record{}, Durable); err != nil {
		t.Fatal(err)
	}
	if err := p.Flush(within(t), Durable); !errors.Is(err, ErrDeliveryTimeout) {
		t.Errorf("%v", err)
	}
	// The flush may have ended by its own time; then it left the record's error to the next.
	if err := p.Close(within(t)); err != nil && !errors.Is(err, ErrDeliveryTimeout) {
		t.Error(err)
	}
	if s := p.Stats(); s.Submitted != 2 || s.Failed != 1 || s.Dropped != 1 {
		t.Errorf("%+v", s)
	}
	if _, err := Dial("unix:///nonexistent/clad.sock", opts); err == nil {
		t.Error("it is there")
	} else if e := (&ConnectError{}); !errors.As(err, &e) || !e.Retryable() {
		t.Errorf("%v", err)
	}
}

func TestCloseEndsWithItsContextBesideADaemonThatHangs(t *testing.T) {
	for _, answers := range []bool{false, true} {
		f, p := startFake(t, quick())
		a := hand(t, p, "a", Durable)
		c := f.accept()
		if answers {
			c.welcome()
			c.expect(0, Durable, false)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if err := p.Close(ctx); !errors.Is(err, ErrClosed) {
			t.Errorf("%v", err)
		}
		wantError(t, a, ReasonClosed, answers)
	}
}

func TestAPeerThatIsNoDaemonIsLeft(t *testing.T) {
	f := newFake(t)
	for _, junk := range []string{"HTTP/1.1 400 Bad Request\r\n\r\n", "", "\xC1\x41"} {
		go func() {
			c := f.accept()
			c.conn.Write([]byte(junk))
			c.cut()
		}()
		if _, err := Dial(f.addr, quick()); err == nil {
			t.Errorf("%q is a daemon", junk)
		}
	}
	go f.accept() // says nothing
	opts := quick()
	opts.ConnectTimeout = 50 * time.Millisecond
	if _, err := Dial(f.addr, opts); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}
