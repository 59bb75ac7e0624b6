package clad

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"clad/internal/wire"
)

// read takes a READ.
func (p *peer) read() wire.Read {
	p.t.Helper()
	h, body := p.frame()
	q, err := wire.ParseRead(h.RequestID, body)
	if h.Type != wire.TRead || err != nil {
		p.t.Fatalf("not READ: %+v %v", h, err)
	}
	return q
}

// records sends an append of these texts, all of them requested unless changed.
func (p *peer) records(id uint32, offset uint64, texts []string, change ...func(*wire.Records)) {
	p.t.Helper()
	var records []Record
	for i, text := range texts {
		records = append(records, Record{Time: uint64(i + 1), Body: String(text)})
	}
	payload := must(EncodePayload(ComponentGroup("t"), records...))
	n := uint32(len(texts))
	r := &wire.Records{
		Epoch: 3, Count: n, FirstOffset: offset, AppendTime: 9, PayloadCRC: wire.CRC(payload), FirstSeq: 7, Take: n,
		Payload: payload, Meta: []wire.PeerMeta{
			{Tag: 1, Value: 2}, {Tag: 4, Value: 0}, {Tag: 9, Value: 5}, {Tag: 32, Bytes: []byte{10, 0, 0, 1, 1, 2}},
			{Tag: 33, Bytes: []byte("a:b")}, {Tag: 40, Bytes: []byte{7}},
		},
	}
	for _, c := range change {
		c(r)
	}
	p.send(r.Put(nil, id))
}

func quickReader(follow bool, from From) ReaderOptions {
	return ReaderOptions{From: from, Follow: follow, BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond}
}

func openFake(t *testing.T, f *fake, opts ReaderOptions) (*Reader, *peer) {
	t.Helper()
	opened := make(chan *Reader)
	go func() {
		r, err := OpenReader(within(t), f.addr, opts)
		if err != nil {
			t.Error(err)
		}
		opened <- r
	}()
	c := f.accept()
	c.welcome()
	r := <-opened
	t.Cleanup(func() { r.Close() })
	return r, c
}

func next[E Event](t *testing.T, r *Reader) E {
	t.Helper()
	event, err := r.Next(within(t))
	e, ok := event.(E)
	if !ok {
		t.Fatalf("not %T: %+v %v", e, event, err)
	}
	return e
}

func TestAReaderComesBackToItsCursor(t *testing.T) {
	f := newFake(t)
	r, c := openFake(t, f, quickReader(true, FromTail(5)))
	if _, ok := r.Cursor(); ok {
		t.Error("a cursor before the first event")
	}
	q := c.read()
	if q.Start != wire.StartTail || q.Cursor.Offset != 5 || q.Flags != wire.ReadFollow || q.MinLevel != 3 {
		t.Fatalf("%+v", q)
	}
	c.records(q.RequestID, 100, []string{"a", "b", "c", "d"}, func(r *wire.Records) { r.Skip, r.Take = 1, 2 })
	e := next[*Records](t, r)
	if len(e.Records) != 2 || e.Records[0].Offset != 101 || e.Records[0].Sequence != 8 || e.Records[1].Record.Body.Text() != "c" {
		t.Fatalf("%+v", e)
	}
	if m := e.PeerMeta; m.Transport != 2 || !m.HasUID || m.UID != 0 || m.HasGID || m.Other[9] != 5 ||
		m.Address.String() != "10.0.0.1:258" || m.Identity != "a:b" || string(m.OtherBytes[40]) != "\x07" {
		t.Errorf("%+v", m)
	}
	if at, _ := r.Cursor(); at != (Cursor{logA, 3, 103}) {
		t.Errorf("%v", at)
	}
	c.send(wire.Gap{From: 103, To: 110, Epoch: 4, Reason: 2}.Put(nil, q.RequestID))
	if g := next[Gap](t, r); g != (Gap{103, 110, GapDamage}) {
		t.Errorf("%+v", g)
	}
	c.send(wire.PutCaughtUp(nil, q.RequestID, wire.Cursor{LogID: logA, Epoch: 4, Offset: 110}))
	next[CaughtUp](t, r)
	// A call that is cut short in the middle of a frame loses nothing.
	payload := must(EncodePayload(Group{}, Record{Body: String("e")}))
	whole := (&wire.Records{Epoch: 4, Count: 1, FirstOffset: 110, Take: 1, Payload: payload, PayloadCRC: wire.CRC(payload)}).Put(nil, q.RequestID)
	c.send(whole[:50])
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := r.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v", err)
	}
	c.send(whole[50:])
	if e := next[*Records](t, r); e.Records[0].Record.Body.Text() != "e" {
		t.Fatalf("%+v", e)
	}
	c.cut()
	got := make(chan Event)
	go func() { got <- must(r.Next(within(t))) }()
	c = f.accept()
	c.welcome()
	if q = c.read(); q.Start != wire.StartCursor || q.Cursor != (wire.Cursor{LogID: logA, Epoch: 4, Offset: 111}) {
		t.Fatalf("%+v", q)
	}
	c.records(q.RequestID, 111, []string{"f"})
	<-got
}

func TestAReadEnds(t *testing.T) {
	f := newFake(t)
	r, c := openFake(t, f, quickReader(false, From{}))
	q := c.read()
	if q.Start != wire.StartOffset || q.Cursor.Offset != 0 {
		t.Fatalf("%+v", q)
	}
	c.send(wire.PutReadEnd(nil, q.RequestID, wire.Cursor{LogID: logA, Epoch: 5, Offset: 7}, 1))
	for range 2 {
		if _, err := r.Next(within(t)); err != io.EOF {
			t.Fatalf("%v", err)
		}
	}
	if at, ok := r.Cursor(); !ok || at != (Cursor{logA, 5, 7}) {
		t.Errorf("%v", at)
	}
}

func TestAnAbandonedOrUnknownCursorIsATypedError(t *testing.T) {
	f := newFake(t)
	asked := Cursor{logA, 2, 90}
	r, c := openFake(t, f, quickReader(true, FromCursor(asked)))
	q := c.read()
	parting := wire.Cursor{LogID: logA, Epoch: 3, Offset: 80}
	c.send((&wire.Error{Code: uint16(CodeCursorAbandoned), Parting: &parting}).Put(nil, q.RequestID))
	_, err := r.Next(within(t))
	var gone *CursorAbandonedError
	if !errors.As(err, &gone) || gone.Cursor != asked || *gone.Parting != (Cursor{logA, 3, 80}) {
		t.Fatalf("%v", err)
	}
	r, c = openFake(t, f, quickReader(true, FromCursor(asked)))
	q = c.read()
	c.send((&wire.Error{Code: uint16(CodeCursorUnknown), Text: "no"}).Put(nil, q.RequestID))
	_, err = r.Next(within(t))
	var no *CursorUnknownError
	if !errors.As(err, &no) || no.Cursor != asked {
		t.Fatalf("%v", err)
	}
}

func TestDamageIsSeenBeforeUse(t *testing.T) {
	for name, change := range map[string]func(*wire.Records){
		"checksum": func(r *wire.Records) { r.PayloadCRC++ },
		"encoding": func(r *wire.Records) { r.Payload[10] ^= 0xFF; r.PayloadCRC = wire.CRC(r.Payload) },
	} {
		f := newFake(t)
		r, c := openFake(t, f, quickReader(false, FromOffset(3)))
		q := c.read()
		c.records(q.RequestID, 100, []string{"a"}, change)
		_, err := r.Next(within(t))
		var damaged *DamagedError
		if !errors.As(err, &damaged) || damaged.Offset != 100 || damaged.Count != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTimesAreComparedRecordByRecordAndTheLimitCountsWhatIsGiven(t *testing.T) {
	f := newFake(t)
	opts := quickReader(false, From{})
	opts.Since, opts.Until, opts.Limit = time.Unix(0, 2), time.Unix(0, 4), 2
	r, c := openFake(t, f, opts)
	q := c.read()
	if q.Flags != wire.ReadSince|wire.ReadUntil || q.Since != 2 || q.Until != 4 || q.Limit != 0 {
		t.Fatalf("%+v", q)
	}
	c.records(q.RequestID, 90, []string{"1"})
	c.records(q.RequestID, 100, []string{"1", "2", "3", "4", "5"})
	e := next[*Records](t, r)
	if len(e.Records) != 2 || e.Records[0].Offset != 101 || e.Records[1].Offset != 102 {
		t.Fatalf("%+v", e)
	}
	if at, _ := r.Cursor(); at.Offset != 103 {
		t.Errorf("%v", at)
	}
	if _, err := r.Next(within(t)); err != io.EOF {
		t.Errorf("%v", err)
	}
}

func TestAReaderAsksForASignOfLife(t *testing.T) {
	f := newFake(t)
	opts := quickReader(true, From{})
	opts.pingAfter, opts.pongWithin = 20*time.Millisecond, 100*time.Millisecond
	r, c := openFake(t, f, opts)
	got := make(chan Event)
	go func() { got <- must(r.Next(within(t))) }()
	c.read()
	var ping [wire.HeaderBytes + 4]byte
	if _, err := io.ReadFull(c.in, ping[:]); err != nil || ping[1] != byte(wire.TPing) {
		t.Fatalf("%x %v", ping, err)
	}
	c = f.accept() // no PONG came
	c.welcome()
	q := c.read()
	c.records(q.RequestID, 100, []string{"a"})
	<-got
}

func TestCloseEndsACallThatWaits(t *testing.T) {
	f := newFake(t)
	r, c := openFake(t, f, quickReader(true, From{}))
	c.read()
	ended := make(chan error)
	go func() {
		_, err := r.Next(context.Background())
		ended <- err
	}()
	time.Sleep(10 * time.Millisecond)
	r.Close()
	if err := <-ended; !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
}

func TestWhoMayNotReadIsTold(t *testing.T) {
	f := newFake(t)
	go func() { f.accept().welcome(func(w *wire.Welcome) { w.MayRead = false }) }()
	_, err := OpenReader(within(t), f.addr, ReaderOptions{})
	var refusal *Refusal
	if !errors.As(err, &refusal) || refusal.Code != CodePermissionDenied {
		t.Fatalf("%v", err)
	}
}
