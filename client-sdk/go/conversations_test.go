package clad

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"clad/internal/wire"
)

// The conversations of the vectors: a server played by hand, and what the client under test does meanwhile.

type conversation struct {
	Name    string
	Options struct {
		ProducerID    hexBytes `json:"producer_id"`
		ProducerEpoch uint32   `json:"producer_epoch"`
	}
	Client []clientStep
	Server []serverStep
}

type clientStep struct {
	Do           string
	Ticket, Text string
	Level        uint8
	Offset       *uint64
	Epoch        *uint32
	Code         Code
	MaybeWritten bool `json:"maybe_written"`
	Start, Flags uint8
	LogID        hexBytes `json:"log_id"`
	Gap          []uint64
	End, Error   bool
	Filter       struct {
		MinSeverity Severity `json:"min_severity"`
	}
}

type serverStep struct {
	Do, Frame, Body, Patch string
	Hex                    hexBytes
	MS                     int
	Steps                  []serverStep
}

var frameNames = map[string]wire.Type{
	"HELLO": wire.THello, "APPEND": wire.TAppend, "FLUSH": wire.TFlush, "READ": wire.TRead, "BYE": wire.TBye,
	"CANCEL_READ": wire.TCancelRead,
}

type heardFrame struct {
	h    wire.Header
	body []byte
}

// server plays the steps of a server.
type server struct {
	t       *testing.T
	fake    *fake
	peer    *peer
	clients <-chan struct{} // closed when the client's steps are done
	heard   *heardFrame     // looked at, and not yet taken
	hello   []byte
	request uint32
	who     []byte // id and epoch of the last HELLO that appends
}

func (s *server) play(steps []serverStep) {
	for i := range steps {
		step := &steps[i]
		switch step.Do {
		case "accept":
			s.peer, s.heard = s.fake.accept(), nil
		case "expect":
			if f := s.take(); !s.matches(f, step) {
				s.t.Fatalf("step %d: %+v %x, not %s %s", i, f.h, f.body, step.Frame, step.Body)
			}
		case "send":
			s.peer.send(s.patched(step))
		case "cut":
			s.peer.cut()
		case "end":
			if h, _, err := s.peer.next(); err != io.EOF && (err != nil || h.Type != wire.TBye) {
				s.t.Fatalf("step %d: %+v %v, not the end", i, h, err)
			}
			s.peer.cut()
		case "nothing":
			s.nothing(time.Duration(step.MS) * time.Millisecond)
		case "optional":
			if f := s.look(s.clients); f != nil && s.matches(f, &step.Steps[0]) {
				s.play(step.Steps)
			}
		default:
			s.t.Fatalf("what is %s?", step.Do)
		}
	}
}

// look waits for a frame, or until enough is closed; it stays where it is.
func (s *server) look(enough <-chan struct{}) *heardFrame {
	for s.heard == nil {
		if enough != nil {
			select {
			case <-enough:
				return nil
			default:
			}
			s.peer.conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		}
		_, err := s.peer.in.Peek(wire.HeaderBytes)
		s.peer.conn.SetReadDeadline(time.Now().Add(testTimeout))
		if enough != nil && errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if enough != nil && err != nil {
			return nil // the client has closed
		}
		h, body := s.peer.frame()
		s.heard = &heardFrame{h, body}
	}
	return s.heard
}

func (s *server) take() *heardFrame {
	f := s.look(nil)
	s.heard = nil
	switch f.h.Type {
	case wire.THello:
		s.hello = f.body
		if hello, _ := wire.ParseHello(f.body); hello.Intent&wire.IntentAppend != 0 {
			if who := f.body[4:24]; s.who != nil && string(s.who) != string(who) {
				s.t.Fatalf("the producer %x comes back as %x", s.who, who)
			} else {
				s.who = who
			}
		}
	case wire.TFlush, wire.TRead:
		s.request = f.h.RequestID
	}
	return f
}

func (s *server) matches(f *heardFrame, step *serverStep) bool {
	if f.h.Type != frameNames[step.Frame] {
		return false
	}
	matched, err := regexp.MatchString("^(?:"+step.Body+")$", hex.EncodeToString(f.body))
	if err != nil {
		s.t.Fatal(err)
	}
	return matched
}

func (s *server) patched(step *serverStep) []byte {
	b := append([]byte(nil), step.Hex...)
	switch step.Patch {
	case "producer":
		id := append([]byte(nil), s.hello[4:24]...)
		if string(id[:16]) == string(make([]byte, 16)) {
			for i := range 16 {
				id[i] = 0xB2
			}
		}
		copy(b[wire.HeaderBytes+40:], id) // bytes 56 to 75 of the frame
		body := b[wire.HeaderBytes : len(b)-4]
		binary.LittleEndian.PutUint32(b[len(b)-4:], wire.CRC(body))
	case "request":
		binary.LittleEndian.PutUint32(b[8:], s.request)
		binary.LittleEndian.PutUint32(b[12:], wire.CRC(b[:12]))
	}
	return b
}

// nothing comes for some time: no frame, or, without a connection, no connection.
func (s *server) nothing(d time.Duration) {
	if s.peer == nil {
		s.t.Fatal("nothing before the first connection")
	}
	s.peer.conn.SetReadDeadline(time.Now().Add(d))
	h, body, err := s.peer.next()
	s.peer.conn.SetReadDeadline(time.Now().Add(testTimeout))
	switch {
	case err == nil:
		s.t.Fatalf("%+v %x comes", h, body)
	case errors.Is(err, os.ErrDeadlineExceeded):
	default: // it is closed
		s.fake.listener.(interface{ SetDeadline(time.Time) error }).SetDeadline(time.Now().Add(d))
		if conn, err := s.fake.listener.Accept(); err == nil {
			conn.Close()
			s.t.Fatal("a connection comes")
		}
	}
}

// client plays the steps of a client.
type client struct {
	t       *testing.T
	p       *Producer
	r       *Reader
	opening error
	tickets map[string]*Ticket
	failed  map[string]error
	closed  chan error
	pending []Stored
	addr    string
}

func (c *client) play(steps []clientStep) {
	for i := range steps {
		step := &steps[i]
		ctx := within(c.t)
		switch step.Do {
		case "append":
			record := Record{Time: 1, Severity: 9, Body: String(step.Text)}
			c.tickets[step.Ticket], c.failed[step.Ticket] = c.p.Append(ctx, record, levelOf(step.Level))
		case "wait":
			var receipt Receipt
			err := c.failed[step.Ticket]
			if err == nil {
				receipt, err = c.tickets[step.Ticket].Wait(ctx)
			}
			if !c.outcome(step, err) {
				c.t.Fatalf("step %d: %v: %+v", i, err, *step)
			}
			if err == nil && (step.Offset != nil && receipt.FirstOffset != *step.Offset ||
				step.Epoch != nil && receipt.Epoch != *step.Epoch) {
				c.t.Fatalf("step %d: %+v, not offset %d of epoch %v", i, receipt, *step.Offset, step.Epoch)
			}
		case "pending":
			wantUnresolved(c.t, c.tickets[step.Ticket])
		case "flush":
			if err := c.p.Flush(ctx, levelOf(step.Level)); !c.outcome(step, err) {
				c.t.Fatalf("step %d: %v: %+v", i, err, *step)
			}
		case "close":
			c.closed = make(chan error, 1)
			go func() { c.closed <- c.p.Close(ctx) }()
		case "read":
			c.read(ctx, step)
		case "next":
			c.next(ctx, i, step)
		default:
			c.t.Fatalf("what is %s?", step.Do)
		}
	}
	if c.closed != nil {
		<-c.closed
	}
}

func (c *client) outcome(step *clientStep, err error) bool {
	if err == nil {
		return step.Code == 0
	}
	var e *AppendError
	return errors.As(err, &e) && codeOf(err) == step.Code && e.MaybeWritten == step.MaybeWritten
}

func codeOf(err error) Code {
	var a *AppendError
	var f *Refusal
	var gone *CursorAbandonedError
	var no *CursorUnknownError
	switch {
	case errors.As(err, &f):
		return f.Code
	case errors.As(err, &a) && a.Reason == ReasonTooLarge:
		return CodeAppendTooLarge
	case errors.As(err, &gone):
		return CodeCursorAbandoned
	case errors.As(err, &no):
		return CodeCursorUnknown
	}
	return 0
}

func (c *client) read(ctx context.Context, step *clientStep) {
	opts := ReaderOptions{
		Follow: step.Flags&wire.ReadFollow != 0, Level: levelOf(step.Level), BackoffMax: 20 * time.Millisecond,
		Filter: Filter{MinSeverity: step.Filter.MinSeverity},
	}
	switch {
	case step.Start == wire.StartCursor:
		cursor := Cursor{Epoch: *step.Epoch, Offset: *step.Offset}
		copy(cursor.LogID[:], step.LogID)
		opts.From = FromCursor(cursor)
	case step.Start == wire.StartTail:
		opts.From = FromTail(*step.Offset)
	default:
		opts.From = FromOffset(*step.Offset)
	}
	c.r, c.opening = OpenReader(ctx, c.addr, opts)
}

func (c *client) next(ctx context.Context, i int, step *clientStep) {
	event, err := Event(CaughtUp{}), c.opening
	for err == nil && len(c.pending) == 0 && event == (CaughtUp{}) {
		event, err = c.r.Next(ctx)
		if records, ok := event.(*Records); ok {
			c.pending = records.Records
		} else if _, caught := event.(CaughtUp); caught {
			event = CaughtUp{}
		} else if _, passed := event.(Progress); passed {
			event = CaughtUp{}
		}
	}
	c.opening = nil
	ok := false
	switch gap, isGap := event.(Gap); {
	case len(c.pending) > 0:
		stored := c.pending[0]
		c.pending = c.pending[1:]
		ok = step.Offset != nil && stored.Offset == *step.Offset && stored.Record.Body.Text() == step.Text
	case isGap:
		ok = len(step.Gap) == 2 && gap.From == step.Gap[0] && gap.To == step.Gap[1]
	case err == io.EOF:
		ok = step.End
	case err != nil:
		ok = step.Error || (step.Code != 0 && codeOf(err) == step.Code)
	}
	if !ok {
		c.t.Fatalf("step %d: %+v %v, not %+v", i, event, err, *step)
	}
}

func (play *conversation) run(t *testing.T) {
	f := newFake(t)
	c := &client{t: t, tickets: map[string]*Ticket{}, failed: map[string]error{}, addr: f.addr}
	if step := play.Client[0].Do; step != "read" {
		opts := quick()
		opts.Component, opts.BackoffMax, opts.ProducerEpoch = "test", 20*time.Millisecond, play.Options.ProducerEpoch
		opts.Level = None // so that closing asks for no more than the steps did
		copy(opts.ProducerID[:], play.Options.ProducerID)
		c.p = must(Start(f.addr, opts))
	}
	done, steps, played := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s := &server{t: t, fake: f, clients: done}
	go func() {
		defer close(played)
		s.play(play.Server)
		close(steps)
		for { // nothing but BYE may come
			h, body, err := s.peer.next()
			if err != nil {
				s.peer.cut()
				return
			}
			if h.Type != wire.TBye {
				t.Errorf("after the last step: %+v %x", h, body)
			}
		}
	}()
	c.play(play.Client)
	close(done)
	select {
	case <-steps:
	case <-played: // it has failed
	case <-time.After(testTimeout):
		t.Fatal("the server's steps are not done")
	}
	if c.p != nil && c.closed == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		c.p.Close(ctx)
		cancel()
	}
	if c.r != nil {
		c.r.Close()
		c.r.end()
	}
	select {
	case <-played:
	case <-time.After(testTimeout):
		t.Fatal("the server's steps are not done")
	}
}

func TestConversations(t *testing.T) {
	dir := os.Getenv("CLAD_VECTORS")
	if dir == "" {
		dir = "../../vectors"
	}
	names, _ := filepath.Glob(filepath.Join(dir, "conversations", "*.json"))
	if len(names) == 0 {
		t.Fatal("there are no conversations")
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			var play conversation
			vectors(t, filepath.Join("conversations", filepath.Base(name)), &play)
			play.run(t)
		})
	}
}
