package clad

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"clad/internal/wire"
)

// A daemon that a test plays by hand.

type fake struct {
	t        testing.TB
	listener net.Listener
	addr     string
}

func newFake(t testing.TB) *fake {
	t.Helper()
	dir, err := os.MkdirTemp("", "clad-go-")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "clad.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		os.RemoveAll(dir)
	})
	return &fake{t, l, "unix://" + path}
}

// peer is one connection of a client.
type peer struct {
	t    testing.TB
	conn net.Conn
	in   *bufio.Reader
}

const testTimeout = 20 * time.Second

func (f *fake) accept() *peer {
	f.t.Helper()
	f.listener.(*net.UnixListener).SetDeadline(time.Now().Add(testTimeout))
	conn, err := f.listener.Accept()
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	conn.SetReadDeadline(time.Now().Add(testTimeout))
	return &peer{f.t, conn, bufio.NewReader(conn)}
}

// frame is the next frame but PINGs, which are answered.
func (p *peer) frame() (wire.Header, []byte) {
	p.t.Helper()
	h, body, err := p.next()
	if err != nil {
		p.t.Fatalf("no frame comes: %v", err)
	}
	return h, body
}

func (p *peer) next() (wire.Header, []byte, error) {
	for {
		var head [wire.HeaderBytes]byte
		if _, err := io.ReadFull(p.in, head[:]); err != nil {
			return wire.Header{}, nil, err
		}
		h, err := wire.ParseHeader(head[:])
		if err != nil {
			return h, nil, err
		}
		body := make([]byte, h.Len)
		if _, err := io.ReadFull(p.in, body); err != nil {
			return h, nil, err
		}
		if h.Type != wire.TPing {
			return h, body, nil
		}
		p.send(wire.PutControl(nil, wire.TPong, h.RequestID, nil))
	}
}

func (p *peer) send(b []byte) {
	p.t.Helper()
	if _, err := p.conn.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) hello() wire.Hello {
	p.t.Helper()
	h, body := p.frame()
	hello, err := wire.ParseHello(body)
	if h.Type != wire.THello || err != nil {
		p.t.Fatalf("not HELLO: %+v %v", h, err)
	}
	return hello
}

var logA, logB = [16]byte{0xA1}, [16]byte{0xB1}

// welcome greets, with these changes to a log in epoch 3 that began at 100.
func (p *peer) welcome(change ...func(*wire.Welcome)) wire.Hello {
	p.t.Helper()
	hello := p.hello()
	w := wire.Welcome{
		Version: 1, Policy: 2, Highest: 4, MayRead: true, LogID: logA, Epoch: 3, Window: 16, EpochFirst: 100,
		ProducerID: hello.ProducerID, ProducerEpoch: hello.ProducerEpoch, MaxAppend: 4 << 20, MaxRecord: 2 << 20,
		Received: 100, Written: 100, Durable: 100,
	}
	for _, c := range change {
		c(&w)
	}
	p.send(w.Put(nil))
	return hello
}

func lastStored(seq, offset uint64) func(*wire.Welcome) {
	return func(w *wire.Welcome) { w.HasLast, w.LastSeq, w.LastOffset, w.LastLevel = true, seq, offset, 4 }
}

func (p *peer) append() (wire.AppendHead, []Record) {
	p.t.Helper()
	h, body := p.frame()
	head, payload, err := wire.ParseAppend(body)
	if h.Type != wire.TAppend || err != nil {
		p.t.Fatalf("not APPEND: %+v %v", h, err)
	}
	if wire.CRC(payload) != head.PayloadCRC {
		p.t.Fatal("the payload's checksum is wrong")
	}
	_, records, err := DecodePayload(payload, head.Count)
	if err != nil {
		p.t.Fatal(err)
	}
	return head, records
}

// expect takes an APPEND with this sequence, level and gap mark.
func (p *peer) expect(seq uint64, level Level, gap bool) wire.AppendHead {
	p.t.Helper()
	head, _ := p.append()
	if head.FirstSeq != seq || head.Level != level.code() || head.Gap != gap {
		p.t.Fatalf("not sequence %d, %v, gap %v: %+v", seq, level, gap, head)
	}
	return head
}

func (p *peer) accepted(seq, offset uint64, epoch uint32) {
	p.t.Helper()
	p.send(wire.Accepted{FirstSeq: seq, FirstOffset: offset, Count: 1, Epoch: epoch}.Put(nil))
}

func (p *peer) mark(level Level, offset, first uint64, epoch uint32) {
	p.t.Helper()
	p.send(wire.Watermark{Offset: offset, EpochFirst: first, Epoch: epoch, Level: level.code()}.Put(nil))
}

func (p *peer) refuse(seq uint64, code Code, flags uint8, change ...func(*wire.Error)) {
	p.t.Helper()
	e := &wire.Error{Code: uint16(code), Flags: flags, Text: "played"}
	for _, c := range change {
		c(e)
	}
	p.send(wire.Refused{FirstSeq: seq, Count: 1, Error: e}.Put(nil))
}

func expecting(seq uint64) func(*wire.Error) { return func(e *wire.Error) { e.Expected = &seq } }

// nothing comes for a while.
func (p *peer) nothing() {
	p.t.Helper()
	p.conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if h, body, err := p.next(); err == nil {
		p.t.Fatalf("%+v %x comes", h, body)
	}
	p.conn.SetReadDeadline(time.Now().Add(testTimeout))
}

func (p *peer) cut() { p.conn.Close() }

// flush answers a FLUSH.
func (p *peer) flush(level Level, offset, first uint64, epoch uint32) {
	p.t.Helper()
	h, body := p.frame()
	asked, err := wire.ParseFlush(body)
	if h.Type != wire.TFlush || err != nil || asked != level.code() {
		p.t.Fatalf("not FLUSH %v: %+v %v %v", level, h, asked, err)
	}
	p.send(wire.Watermark{RequestID: h.RequestID, Offset: offset, EpochFirst: first, Epoch: epoch, Level: asked}.Put(nil))
}

// ends takes BYE, or the end of the connection without one.
func (p *peer) ends(bye bool) {
	p.t.Helper()
	h, _, err := p.next()
	if bye && (err != nil || h.Type != wire.TBye) {
		p.t.Fatalf("no BYE: %+v %v", h, err)
	}
	if !bye && err != io.EOF {
		p.t.Fatalf("no end: %+v %v", h, err)
	}
	p.conn.Close()
}

// quick options of a client: one record an append, short waits.
func quick() Options {
	return Options{
		Component: "t", MaxAppendRecords: 1, BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond,
	}
}

func startFake(t testing.TB, opts Options) (*fake, *Producer) {
	t.Helper()
	f := newFake(t)
	p, err := Start(f.addr, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		p.Close(ctx)
	})
	return f, p
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// hand appends a text and answers its ticket.
func hand(t testing.TB, p *Producer, text string, level Level) *Ticket {
	t.Helper()
	ticket, err := p.Append(within(t), Record{Body: String(text)}, level)
	if err != nil {
		t.Fatal(err)
	}
	return ticket
}

func wantReceipt(t testing.TB, ticket *Ticket, offset uint64, epoch uint32, level Level) {
	t.Helper()
	r, err := ticket.Wait(within(t))
	if err != nil || r.FirstOffset != offset || r.Epoch != epoch || r.Level != level {
		t.Fatalf("not offset %d of epoch %d at %v: %+v %v", offset, epoch, level, r, err)
	}
}

func wantError(t testing.TB, ticket *Ticket, reason Reason, maybe bool) *AppendError {
	t.Helper()
	r, err := ticket.Wait(within(t))
	e, ok := err.(*AppendError)
	if !ok || e.Reason != reason || e.MaybeWritten != maybe {
		t.Fatalf("not reason %d, maybe written %v: %+v %v", reason, maybe, r, err)
	}
	return e
}

func wantUnresolved(t testing.TB, ticket *Ticket) {
	t.Helper()
	select {
	case <-ticket.Done():
		r, err := ticket.Wait(context.Background())
		t.Fatalf("it has resolved: %+v %v", r, err)
	case <-time.After(30 * time.Millisecond):
	}
}
