package clad

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"clad/internal/wire"
)

// framed is a connection that was greeted. One goroutine reads from it, one writes to it.
type framed struct {
	address address
	conn    net.Conn
	in      *bufio.Reader
	welcome *wire.Welcome
	head    [wire.HeaderBytes]byte
	control [wire.ControlBytesMax]byte
}

// connect dials and greets within the context.
func connect(ctx context.Context, a address, hello wire.Hello) (*framed, error) {
	token, err := a.token()
	if err != nil {
		return nil, err
	}
	if token != nil {
		hello.Secret = token
	}
	conn, err := a.dial(ctx)
	if err != nil {
		return nil, err
	}
	f := &framed{address: a, conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	err = f.greet(hello)
	if !stop() && err == nil {
		err = a.fail(context.Cause(ctx))
	}
	if err != nil {
		conn.Close()
		if ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
			err = a.fail(ctx.Err())
		}
		return nil, err
	}
	return f, nil
}

func (f *framed) greet(hello wire.Hello) error {
	hello.MinVersion, hello.MaxVersion = wire.VersionMin, wire.Version
	_, failed := f.conn.Write(hello.Put(nil))
	// Why it was closed may be in what is still to be read.
	h, body, err := f.frame()
	switch {
	case failed != nil && err != nil:
		var refused *ConnectError
		if errors.As(err, &refused) && refused.Refusal != nil {
			return err
		}
		return f.address.fail(failed)
	case err != nil:
		return err
	case h.Type != wire.TWelcome:
		return f.address.broken("a frame of type %#x where WELCOME belongs", uint8(h.Type))
	}
	if f.welcome, err = wire.ParseWelcome(body); err != nil {
		return f.address.broken("WELCOME: %v", err)
	}
	if f.welcome.Version < wire.VersionMin || f.welcome.Version > wire.Version {
		return f.address.broken("it chose version %d, which was not offered", f.welcome.Version)
	}
	return nil
}

// frame reads the next frame. Its body is good until the next call, except that of RECORDS, which is the caller's. An
// ERROR for the connection is an error here.
func (f *framed) frame() (wire.Header, []byte, error) {
	if _, err := io.ReadFull(f.in, f.head[:]); err != nil {
		return wire.Header{}, nil, f.lost(err)
	}
	h, err := wire.ParseHeader(f.head[:])
	if err != nil {
		return h, nil, f.address.broken("%v", err)
	}
	body := f.control[:]
	if h.Type == wire.TRecords {
		if body, err = readGrowing(f.in, int(h.Len)); err != nil {
			return h, nil, f.lost(err)
		}
	} else {
		if int(h.Len) > len(body) {
			return h, nil, f.address.broken("a frame of type %#x from a daemon", uint8(h.Type))
		}
		body = body[:h.Len]
		if _, err := io.ReadFull(f.in, body); err != nil {
			return h, nil, f.lost(err)
		}
	}
	if h.Type == wire.TError && h.RequestID == 0 {
		e, err := wire.ParseError(body)
		if err != nil {
			return h, nil, f.address.broken("ERROR: %v", err)
		}
		return h, nil, &ConnectError{Address: f.address.text, Refusal: refusalOf(e)}
	}
	return h, body, nil
}

// readGrowing reads n bytes. A length that a peer states takes memory only as its bytes come.
func readGrowing(r io.Reader, n int) ([]byte, error) {
	const step = 1 << 20
	var body []byte
	for len(body) < n {
		from := len(body)
		body = append(body, make([]byte, min(step, n-from))...)
		if _, err := io.ReadFull(r, body[from:]); err != nil {
			return nil, err
		}
	}
	return body, nil
}

func (f *framed) lost(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &ConnectError{Address: f.address.text, Err: errClosedByDaemon, retryable: true}
	}
	return f.address.fail(err)
}

var (
	errClosedByDaemon = errors.New("the connection was closed")
	errSilent         = errors.New("the daemon has sent nothing for too long")
)

// connect makes a connection of a producer, and takes note of what the daemon says of itself.
func (p *Producer) connect() (*framed, error) {
	ctx, cancel := context.WithTimeout(p.stop, p.opts.ConnectTimeout)
	defer cancel()
	f, err := connect(ctx, p.address, wire.Hello{
		ProducerID: p.opts.ProducerID, ProducerEpoch: p.opts.ProducerEpoch, Intent: wire.IntentAppend,
		Name: p.opts.Name, Secret: p.opts.Secret,
	})
	if err != nil {
		return nil, err
	}
	if ProducerID(f.welcome.ProducerID) != p.opts.ProducerID {
		err = p.address.broken("it welcomes another producer than was named")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		if shared := p.session.connected(f.welcome); shared != nil {
			err = &ConnectError{Address: p.address.text, Err: shared}
		}
	}
	if err != nil {
		f.conn.Close()
		return nil, err
	}
	w := f.welcome
	if !p.greeted {
		p.hasLast, p.last = w.HasLast, LastStored{w.LastSeq, w.LastOffset, levelOf(w.LastLevel)}
	}
	p.info, p.greeted, p.conn = infoOf(w), true, f.conn
	p.maxRecord, p.maxGroup = min(int(w.MaxRecord), wire.RecordBytesMax), min(p.opts.MaxAppendBytes, int(w.MaxAppend))
	p.connects++
	return f, nil
}

// run is the producer's goroutine: it connects, serves the connection, and comes back, until the end.
func (p *Producer) run(f *framed) {
	var end *AppendError
	retry := newBackoff(p.opts.BackoffMin, p.opts.BackoffMax, seed())
	for end == nil {
		if f == nil {
			f, end = p.dial(&retry)
		} else {
			end = p.serve(f, &retry)
			f = nil
		}
	}
	p.mu.Lock()
	p.life, p.why = lifeEnded, end
	p.session.failAll(end)
	p.conn = nil
	p.callNext()
	p.mu.Unlock()
	p.halt()
	close(p.done)
}

// over says whether there is nothing more to do, or no more time for it.
func (p *Producer) over() *AppendError {
	if p.life == lifeAborted || (p.life == lifeClosing && p.session.idle()) {
		return &AppendError{Reason: ReasonClosed}
	}
	return nil
}

// dial waits until there is something to do, and connects, again and again.
func (p *Producer) dial(retry *backoff) (*framed, *AppendError) {
	p.mu.Lock()
	first := p.connects == 0
	p.mu.Unlock()
	var retryAt time.Time
	if !first {
		retryAt = time.Now().Add(retry.next())
	}
	for {
		now := time.Now()
		p.mu.Lock()
		p.session.tick(now)
		end := p.over()
		wanted := first || !p.session.idle()
		until := p.session.nextTimer()
		p.sleeping = true
		p.mu.Unlock()
		if end != nil {
			return nil, end
		}
		if wanted && !retryAt.After(now) {
			f, err := p.connect()
			if err == nil {
				return f, nil
			}
			first = false
			var refused *ConnectError
			if errors.As(err, &refused) && refused.final() {
				return nil, &AppendError{Reason: ReasonFailed, Err: err}
			}
			p.mu.Lock()
			now = time.Now()
			p.session.disconnected(now, err.Error())
			p.mu.Unlock()
			retryAt = now.Add(retry.next())
			continue
		}
		if wanted && (until.IsZero() || retryAt.Before(until)) {
			until = retryAt
		}
		p.sleep(until)
	}
}

// sleep waits until there is something to do, or until then; zero: as long as it takes.
func (p *Producer) sleep(until time.Time) {
	if until.IsZero() {
		<-p.wake
		return
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-p.wake:
	case <-timer.C:
	}
}

// serving is one connection under way.
type serving struct {
	p *Producer
	f *framed
	// failed has why reading ended, once it has; ended says that it was taken out.
	failed chan error
	ended  bool
	// heard is when something came last, pinged when a sign of life was asked for since; under the producer's lock.
	heard, pinged time.Time
	retry         *backoff
}

// serve works on one connection until it is lost; an error is the end of the producer.
func (p *Producer) serve(f *framed, retry *backoff) *AppendError {
	s := &serving{p: p, f: f, failed: make(chan error, 1), heard: time.Now(), retry: retry}
	go s.read()
	err, end := s.write()
	if end != nil {
		p.mu.Lock()
		bye := p.session.idle() && !p.opts.comesBack
		p.mu.Unlock()
		s.goodbye(bye)
		return end
	}
	f.conn.Close()
	s.join() // no answer of this connection comes after this
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn = nil
	var refused *ConnectError
	if errors.As(err, &refused) {
		if refusal := refused.ofAnAppend(); refusal != nil {
			p.session.endedByAppend(refusal)
		} else if refused.final() {
			return &AppendError{Reason: ReasonFailed, Err: err}
		}
	}
	p.session.disconnected(time.Now(), err.Error())
	return nil
}

// write sends what there is to send. It answers why the connection is lost, or the end of the producer.
func (s *serving) write() (error, *AppendError) {
	const enough = 256 << 10
	p := s.p
	buf := make([]byte, 0, 8<<10)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if cap(buf) > 2*enough {
			buf = nil
		}
		buf = buf[:0]
		now := time.Now()
		p.mu.Lock()
		p.session.tick(now)
		p.report(now, p.life == lifeClosing)
		var info sentOut
		more := true
		for more && len(buf) < enough {
			if buf, info, more = p.session.next(buf, now); !info.report {
				if info.again {
					p.stats.Resent += uint64(info.records)
				} else {
					p.stats.Sent += uint64(info.records)
				}
			}
		}
		ping, due, silent := s.pulse(now)
		if ping {
			buf = wire.PutControl(buf, wire.TPing, 1, nil)
		}
		end := p.over()
		until := p.session.nextTimer()
		if until.IsZero() || due.Before(until) {
			until = due
		}
		if p.drops.count > 0 && p.used <= p.opts.MaxBufferedBytes/4*3 {
			if at := p.reported.Add(reportEvery); at.Before(until) {
				until = at
			}
		}
		p.sleeping = len(buf) == 0
		p.mu.Unlock()
		if silent {
			return p.address.fail(errSilent), nil
		}
		if end != nil && len(buf) == 0 {
			return nil, end
		}
		if len(buf) > 0 {
			s.f.conn.SetWriteDeadline(now.Add(p.opts.pingAfter + p.opts.pongWithin))
			if _, err := s.f.conn.Write(buf); err != nil {
				return s.whyClosed(err), nil
			}
			continue
		}
		if !timer.Stop() {
			select {
			case <-timer.C:
			default:
			}
		}
		timer.Reset(time.Until(until))
		select {
		case <-p.wake:
		case <-timer.C:
		case err := <-s.failed:
			s.ended = true
			return err, nil
		}
	}
}

// join waits until reading has ended, and answers why.
func (s *serving) join() error {
	if s.ended {
		return nil
	}
	s.ended = true
	return <-s.failed
}

// whyClosed answers why writing has failed: that may be in what is still to be read.
func (s *serving) whyClosed(err error) error {
	s.f.conn.SetReadDeadline(time.Now().Add(2 * time.Second))
	if read := s.join(); !errors.Is(read, os.ErrDeadlineExceeded) {
		return read
	}
	return s.p.address.fail(err)
}

// pulse says whether to ask for a sign of life, when it is time to look again, and whether the daemon is gone.
func (s *serving) pulse(now time.Time) (ping bool, due time.Time, silent bool) {
	o := &s.p.opts
	if s.pinged.IsZero() {
		if due = s.heard.Add(o.pingAfter); due.After(now) {
			return false, due, false
		}
		s.pinged = now
		return true, now.Add(o.pongWithin), false
	}
	due = s.pinged.Add(o.pongWithin)
	return false, due, !due.After(now)
}

// read takes the daemon's answers until the connection ends.
func (s *serving) read() {
	for {
		h, body, err := s.f.frame()
		if err == nil {
			err = s.answer(h, body)
		}
		if err != nil {
			s.failed <- err
			return
		}
	}
}

func (s *serving) answer(h wire.Header, body []byte) error {
	now := time.Now()
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	s.heard, s.pinged = now, time.Time{}
	var err error
	switch h.Type {
	case wire.TAccepted:
		var a wire.Accepted
		if a, err = wire.ParseAccepted(body); err == nil {
			if err = p.session.accepted(a, now); err == nil {
				s.retry.reset()
			}
		}
	case wire.TWatermark:
		var w wire.Watermark
		if w, err = wire.ParseWatermark(h.RequestID, body); err == nil {
			p.session.watermark(w, now)
		}
	case wire.TRefused:
		var r wire.Refused
		if r, err = wire.ParseRefused(body); err == nil {
			p.session.refused(r.FirstSeq, refusalOf(r.Error), now)
		}
	case wire.TError:
		var e *wire.Error
		if e, err = wire.ParseError(body); err == nil {
			p.session.flushRefused(h.RequestID, refusalOf(e), now)
		}
	case wire.TPong:
		_, err = wire.Control(body)
	default:
		return p.address.broken("a frame of type %#x where an answer to an append belongs", uint8(h.Type))
	}
	if err != nil {
		return p.address.broken("a frame of type %#x: %v", uint8(h.Type), err)
	}
	p.rouse()
	return nil
}

// goodbye ends the connection in order: what the daemon has not read yet would be thrown away, were bytes unread here.
func (s *serving) goodbye(bye bool) {
	deadline := time.Now().Add(byeTimeout)
	s.f.conn.SetDeadline(deadline)
	if bye {
		s.f.conn.Write(wire.PutControl(nil, wire.TBye, 0, nil))
	}
	if half, ok := s.f.conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		s.join() // the reader sees the daemon's end
	}
	s.f.conn.Close()
	s.join()
}
