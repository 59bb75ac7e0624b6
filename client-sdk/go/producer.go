package clad

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"time"

	"clad/internal/wire"
)

// Producer appends records. It is safe for use by many goroutines; all of them are one producer with one order and one
// connection. Close it: nothing else ends its goroutine.
type Producer struct {
	address address
	opts    Options
	// group is the encoded resource and scope.
	group []byte
	// wake tells the writer that there is something to do; signalled while it sleeps.
	wake chan struct{}
	// done is closed when everything has its outcome and the connection is gone.
	done chan struct{}
	// stop ends tries to connect.
	stop context.Context
	halt context.CancelFunc

	mu       sync.Mutex
	session  session
	sleeping bool
	life     life
	why      *AppendError // of an end
	used     int
	waiters  []chan struct{} // for room, first come, first served
	stats    Stats
	connects uint64
	drops    dropSpan // not yet reported
	reported time.Time
	// undelivered is the worst error that nobody has heard of.
	undelivered *AppendError
	info        LogInfo
	greeted     bool
	last        LastStored
	hasLast     bool
	// maxRecord is the longest record that the daemon takes, maxGroup the longest payload into which records are grouped.
	maxRecord, maxGroup int
	free                []*entry
	freeBytes           int
	conn                net.Conn
}

type life uint8

const (
	lifeOpen life = iota
	// lifeClosing: nothing more is taken; what is there is brought home.
	lifeClosing
	// lifeAborted: it ends now.
	lifeAborted
	lifeEnded
)

// LastStored is the last record that the log has of a producer.
type LastStored struct {
	Sequence, Offset uint64
	Level            Level
}

// dropSpan is records that were dropped, and when.
type dropSpan struct {
	count       uint64
	first, last time.Time
}

func (d *dropSpan) add(o dropSpan) {
	if o.count == 0 {
		return
	}
	if d.count == 0 || o.first.Before(d.first) {
		d.first = o.first
	}
	if o.last.After(d.last) {
		d.last = o.last
	}
	d.count += o.count
}

// Dial connects once, then makes the producer: a wrong address or a refusing daemon is reported here. The address is
// `unix://PATH`, `tcp://HOST:PORT` or `tcp+tls://HOST:PORT?ca=FILE`; "" is that of [FindDaemon].
func Dial(addr string, opts Options) (*Producer, error) {
	p, err := newProducer(addr, opts)
	if err != nil {
		return nil, err
	}
	c, err := p.connect()
	if err != nil {
		p.halt()
		return nil, err
	}
	go p.run(c)
	return p, nil
}

// Start makes the producer without waiting for a daemon: it connects by itself, and appends wait for that. The address is
// as for [Dial].
func Start(addr string, opts Options) (*Producer, error) {
	p, err := newProducer(addr, opts)
	if err != nil {
		return nil, err
	}
	go p.run(nil)
	return p, nil
}

func newProducer(addr string, opts Options) (*Producer, error) {
	a, err := parseAddress(addr)
	if err != nil {
		return nil, err
	}
	opts.finish(a)
	e := encoder{}
	e.group(opts.Group)
	if e.err != nil {
		return nil, &AppendError{Reason: ReasonBadRecord, Err: e.err}
	}
	// What one append needs must fit, whatever was asked for.
	opts.MaxBufferedBytes = max(opts.MaxBufferedBytes, len(e.buf)+4<<10)
	p := &Producer{
		address: a, opts: opts, group: e.buf, wake: make(chan struct{}, 1), done: make(chan struct{}),
		maxRecord: wire.DefaultRecordBytes, maxGroup: opts.MaxAppendBytes,
	}
	p.stop, p.halt = context.WithCancel(context.Background())
	p.session = session{
		maxInFlight: opts.MaxInFlightAppends, deliveryTimeout: opts.DeliveryTimeout,
		backoff: newBackoff(opts.BackoffMin, opts.BackoffMax, seed()),
		onDone:  p.appendDone, onFlush: p.flushDone, onGone: p.recycle,
	}
	return p, nil
}

func seed() uint64 {
	var b [8]byte
	random(b[:])
	return le.Uint64(b[:])
}

// ID answers the producer's id.
func (p *Producer) ID() ProducerID { return p.opts.ProducerID }

// Log answers the daemon's description of itself at the last greeting; false before the first.
func (p *Producer) Log() (LogInfo, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.info, p.greeted
}

// LastStored answers what the log had of this producer at the first greeting; false if nothing. With a
// [Options.ProducerID], a program that died learns here how many of its records are stored. They can still be lost with
// the daemon unless the Level covers that: while it is too low, close this producer and [Dial] again.
func (p *Producer) LastStored() (LastStored, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last, p.hasLast
}

// Stats answers the counters so far.
func (p *Producer) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Reconnects = max(p.connects, 1) - 1
	s.BufferedBytes, s.PendingAppends = uint64(p.used), uint64(p.session.entries.n)
	return s
}

// WhyWaiting answers the reason why nothing goes forward, in words for a person; "" while appends are taken.
func (p *Producer) WhyWaiting() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session.troubleSince.IsZero() {
		return ""
	}
	return p.session.troubleWhy
}

// Append hands over a record. The ticket resolves when it has reached the level, or when it is known that it will not.
// It waits for room, if there is none, as `full` says, else as [Options.WhenFull] says. Records that wait to be sent
// are grouped into one append.
//
// An error means that the record was not handed over and is certainly not written: [ErrDropped], [ErrTooLarge],
// [ErrBadRecord], [ErrClosed], [ErrFailed]. Whichever it is, the record is counted as dropped.
func (p *Producer) Append(ctx context.Context, record Record, level Level, full ...WhenFull) (*Ticket, error) {
	t := newTicket()
	if err := p.append(ctx, &record, level, p.policy(full), t); err != nil {
		return nil, err
	}
	return t, nil
}

// Post hands over a record that nobody waits for. If it ends with an error, the next Flush or
// Close reports that; if it is certainly not written, it is counted as dropped. So is one that Post itself refuses.
func (p *Producer) Post(ctx context.Context, record Record, level Level, full ...WhenFull) error {
	return p.append(ctx, &record, level, p.policy(full), nil)
}

// Send hands over a record and waits until it has reached the level.
func (p *Producer) Send(ctx context.Context, record Record, level Level) (Receipt, error) {
	t, err := p.Append(ctx, record, level)
	if err != nil {
		return Receipt{}, err
	}
	return t.Wait(ctx)
}

// AppendBatch hands over records as one append: taken or refused whole, stored with consecutive offsets, one receipt.
func (p *Producer) AppendBatch(ctx context.Context, records []Record, level Level, full ...WhenFull) (*Ticket, error) {
	s := getScratch()
	defer s.put()
	severity := Severity(0)
	for i := range records {
		start := len(s.buf)
		s.record(&records[i])
		if err := p.checkRecord(&s.encoder, start); err != nil {
			return nil, p.lost(len(records), err)
		}
		severity = max(severity, records[i].Severity)
	}
	if len(records) == 0 || len(records) > wire.AppendRecordsMax {
		err := &AppendError{Reason: ReasonBadRecord, Err: errors.New("an append has 1 to 2^20 records")}
		return nil, p.lost(len(records), err)
	}
	t := newTicket()
	item := item{bytes: s.buf, count: uint32(len(records)), alone: true, level: level, severity: severity, ticket: t}
	if err := p.put(ctx, item, p.policy(full)); err != nil {
		return nil, err
	}
	return t, nil
}

func (p *Producer) policy(full []WhenFull) WhenFull {
	if len(full) > 0 {
		return full[0]
	}
	return p.opts.WhenFull
}

func (p *Producer) append(ctx context.Context, record *Record, level Level, full WhenFull, t *Ticket) error {
	s := getScratch()
	defer s.put()
	s.record(record)
	if err := p.checkRecord(&s.encoder, 0); err != nil {
		return p.lost(1, err)
	}
	item := item{bytes: s.buf, count: 1, level: level, severity: record.Severity, ticket: t}
	return p.put(ctx, item, full)
}

// checkRecord answers why the record that was encoded from `start` on is not taken, if it is not.
func (p *Producer) checkRecord(e *encoder, start int) error {
	if e.err != nil {
		return &AppendError{Reason: ReasonBadRecord, Err: e.err}
	}
	p.mu.Lock()
	limit := p.maxRecord
	p.mu.Unlock()
	if n := len(e.buf) - start; n > limit {
		return tooLarge(n, limit)
	}
	return nil
}

// lost counts records that never came as far as put, which counts by itself. It answers the error.
func (p *Producer) lost(count int, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropped(uint64(count))
	return err
}

// scratch is a buffer to encode in, outside of the lock: attributes may call code of the application.
type scratch struct{ encoder }

var scratches = sync.Pool{New: func() any { return &scratch{} }}

func getScratch() *scratch {
	s := scratches.Get().(*scratch)
	s.buf, s.err = s.buf[:0], nil
	return s
}

func (s *scratch) put() {
	if cap(s.buf) <= 64<<10 {
		scratches.Put(s)
	}
}

// item is encoded records on their way in.
type item struct {
	bytes    []byte
	count    uint32
	alone    bool
	level    Level
	severity Severity
	// below is the severity of a DropBelow rule, else 0. Records on its two sides do not share an append.
	below  Severity
	ticket *Ticket
}

// put takes records in, or counts them as dropped, as the policy says. The bytes are copied.
func (p *Producer) put(ctx context.Context, it item, full WhenFull) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refuses(); err != nil {
		p.dropped(uint64(it.count))
		return err
	}
	it.below = full.below
	if p.take(it, full.how == fullDropOldest) {
		return nil
	}
	most := len(p.group) + len(it.bytes) + appendOverhead
	if most > p.opts.MaxBufferedBytes {
		p.dropped(uint64(it.count))
		return tooLarge(most, p.opts.MaxBufferedBytes)
	}
	switch full.how {
	case fullWait:
		return p.waitForRoom(ctx, it, full.limit)
	case fullDropBelow:
		if it.severity < full.below {
			break
		}
		if p.takePlace(it, most) {
			return nil
		}
		if full.limit > 0 {
			return p.waitForRoom(ctx, it, full.limit)
		}
	case fullDropOldest:
		for p.session.entries.n > p.session.numbered {
			p.session.finish(p.session.numbered, Receipt{}, &AppendError{Reason: ReasonDropped})
			if p.take(it, true) {
				return nil
			}
		}
	}
	p.dropped(uint64(it.count))
	return &AppendError{Reason: ReasonDropped}
}

// takePlace drops less severe appends that were never sent, and takes records in, if there is room then. `most` is the
// most that they can cost.
func (p *Producer) takePlace(it item, most int) bool {
	wanted := most
	if len(p.waiters) == 0 { // else what is free is theirs
		wanted -= p.opts.MaxBufferedBytes - p.used
	}
	// All that waits is looked at, so a part of the room is freed at a time.
	freed := p.session.dropBelow(it.below, max(wanted, p.opts.MaxBufferedBytes/severityDropPart))
	if freed > 0 {
		p.rouse() // a flush may have waited for them
	}
	return p.take(it, freed >= most)
}

// refuses answers why nothing is taken any more.
func (p *Producer) refuses() error {
	switch p.life {
	case lifeOpen:
		return nil
	case lifeEnded:
		if p.why.Reason == ReasonFailed {
			return &AppendError{Reason: ReasonFailed, Err: p.why.Err}
		}
	}
	return &AppendError{Reason: ReasonClosed}
}

// dropped counts records that were never taken in.
func (p *Producer) dropped(count uint64) {
	p.stats.Submitted += count
	if p.life != lifeOpen {
		p.stats.Dropped += count // not reported: calls after its end must not keep a producer from ending
	} else if count > 0 {
		now := time.Now()
		p.noteDrops(dropSpan{count, now, now})
	}
}

func (p *Producer) noteDrops(d dropSpan) {
	p.stats.Dropped += d.count
	first := p.drops.count == 0
	p.drops.add(d)
	if first {
		p.rouse() // it knows when to report from then on
	}
}

// rouse wakes the writer, if it sleeps.
func (p *Producer) rouse() {
	if p.sleeping {
		p.sleeping = false
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

// take takes records in, if there is room. `turn`: those who wait for room are behind this one.
func (p *Producer) take(it item, turn bool) bool {
	if len(p.waiters) > 0 && !turn {
		return false
	}
	alone := it.alone || len(it.bytes) > aloneBytes
	e := p.session.entries.last()
	joins := !alone && e != nil && !e.sealed && e.level == it.level && int(e.count+it.count) <= p.opts.MaxAppendRecords &&
		len(e.payload)+len(it.bytes) <= p.maxGroup && (e.severity < it.below) == (it.severity < it.below)
	cost := len(it.bytes)
	if !joins {
		cost += len(p.group) + appendOverhead
	}
	if p.used+cost > p.opts.MaxBufferedBytes {
		return false
	}
	p.used += cost
	if !joins {
		e = p.newEntry(it.level)
		p.session.push(e)
	}
	if it.ticket != nil {
		e.tickets = append(e.tickets, share{e.count, it.count, it.ticket})
	}
	e.cost += cost
	e.count += it.count
	e.severity = max(e.severity, it.severity)
	e.payload = append(e.payload, it.bytes...)
	if alone {
		e.seal()
	}
	p.stats.Submitted += uint64(it.count)
	p.rouse()
	return true
}

func (p *Producer) newEntry(level Level) *entry {
	var e *entry
	if n := len(p.free); n > 0 {
		e = p.free[n-1]
		p.free = p.free[:n-1]
		p.freeBytes -= cap(e.payload)
		*e = entry{payload: e.payload[:0], tickets: e.tickets[:0]}
	} else {
		e = &entry{}
	}
	e.level, e.submitted = level, time.Now()
	e.payload = append(e.payload, p.group...)
	return e
}

// recycle keeps the memory of an entry for the next one, within a bound.
func (p *Producer) recycle(e *entry) {
	if c := cap(e.payload); c > 0 && c <= 2*p.opts.MaxAppendBytes && p.freeBytes+c <= p.opts.MaxBufferedBytes/4 {
		clear(e.tickets[:cap(e.tickets)])
		e.refusal, e.span = nil, nil
		p.freeBytes += c
		p.free = append(p.free, e)
	}
}

// waitForRoom waits for its turn. The lock is held, but not while it waits.
func (p *Producer) waitForRoom(ctx context.Context, it item, limit time.Duration) error {
	turn := make(chan struct{}, 1)
	p.waiters = append(p.waiters, turn)
	var expired <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		expired = timer.C
	}
	var cause error
	for cause == nil {
		p.mu.Unlock()
		select {
		case <-turn:
		case <-ctx.Done():
			cause = ctx.Err()
		case <-expired:
			cause = errWaited
		}
		p.mu.Lock()
		if err := p.refuses(); err != nil {
			p.leave(turn)
			p.dropped(uint64(it.count))
			return err
		}
		if p.waiters[0] == turn && p.take(it, true) {
			p.leave(turn)
			return nil
		}
	}
	p.leave(turn)
	p.dropped(uint64(it.count))
	return &AppendError{Reason: ReasonDropped, Err: cause}
}

var errWaited = errors.New("there was none in time")

func (p *Producer) leave(turn chan struct{}) {
	for i, w := range p.waiters {
		if w == turn {
			p.waiters = append(p.waiters[:i], p.waiters[i+1:]...)
			break
		}
	}
	p.callNext()
}

// callNext lets the first who waits for room look again.
func (p *Producer) callNext() {
	if len(p.waiters) > 0 {
		select {
		case p.waiters[0] <- struct{}{}:
		default:
		}
	}
}

// appendDone gives an append its outcome.
func (p *Producer) appendDone(e *entry, receipt Receipt, err *AppendError) {
	p.used -= e.cost
	unheard := uint64(e.count)
	for _, s := range e.tickets {
		own := receipt
		if err == nil && receipt.Level != None {
			own.FirstOffset += uint64(s.index)
		}
		own.Count = s.count
		s.ticket.resolve(own, err)
		unheard -= uint64(s.count)
	}
	heard := uint64(e.count) - unheard
	switch {
	case e.span != nil:
		if err == nil {
			p.stats.ReportedDrops += e.span.count
		} else if !err.MaybeWritten && p.life == lifeOpen {
			p.drops.add(*e.span) // a closing producer tries once: a daemon that refuses must not keep it
		}
	case err == nil:
		p.stats.Acked += uint64(e.count)
	case err.Reason == ReasonDropped:
		p.noteDrops(dropSpan{uint64(e.count), e.submitted, time.Now()})
	case !err.MaybeWritten:
		p.stats.Failed += heard
		if unheard > 0 {
			p.noteDrops(dropSpan{unheard, e.submitted, time.Now()})
		}
	default:
		p.stats.Failed += uint64(e.count)
	}
	if err != nil && unheard > 0 && e.span == nil && err.Reason != ReasonDropped {
		p.addUndelivered(err)
	}
	e.payload = e.payload[:0]
	p.callNext()
}

func (p *Producer) addUndelivered(err *AppendError) {
	if p.undelivered == nil || p.undelivered.weight() < err.weight() {
		p.undelivered = err
	}
}

func (p *Producer) flushDone(f *flushWait, err *AppendError) {
	if err == nil && !f.abandoned && p.undelivered != nil {
		err, p.undelivered = p.undelivered, nil
	} else if err != nil && f.abandoned && err.once() {
		p.addUndelivered(err)
	}
	f.err = err
	close(f.done)
}

// report hands over a record of the drops so far, if there is a connection and room for it. Forced, as a flush and the
// end do, it asks for neither: the report waits for a connection like any other record.
func (p *Producer) report(now time.Time, forced bool) {
	canWait := p.session.link == nil || p.used > p.opts.MaxBufferedBytes/4*3 || now.Before(p.reported.Add(reportEvery))
	if p.drops.count == 0 || (canWait && !forced) {
		return
	}
	d := p.drops
	p.drops, p.reported = dropSpan{}, now
	text := strconv.FormatUint(d.count, 10) + " records dropped between " + d.first.UTC().Format(time.RFC3339Nano) +
		" and " + d.last.UTC().Format(time.RFC3339Nano)
	level := p.opts.Level
	if p.greeted && level > p.info.Highest {
		level = Highest // a level that is refused would be refused again each second
	}
	e := p.newEntry(level)
	enc := encoder{buf: e.payload}
	enc.record(&Record{
		Time: Nanos(now), Severity: SeverityWarn, SeverityText: "WARN", Body: String(text), EventName: "clad.records_dropped",
		Attributes: []Attr{
			KV("clad.dropped.records", int64(d.count)), KV("clad.dropped.first_time_unix_nano", d.first.UnixNano()),
			KV("clad.dropped.last_time_unix_nano", d.last.UnixNano()),
		},
	})
	e.payload, e.count, e.span = enc.buf, 1, &d
	e.cost = len(e.payload) + appendOverhead
	p.used += e.cost
	e.seal()
	p.session.push(e)
}

// Flush waits until every record that was handed over before has reached a level ([Highest]: that of the log). Records
// sent at level none count as far as they reached the daemon.
//
// It reports an error that nobody has heard of: of a record that was posted, or of records that were lost at a lower
// level. Such an error is reported once; of several, the worst is. If the context ends first, nothing changes.
func (p *Producer) Flush(ctx context.Context, level Level) error {
	p.mu.Lock()
	if err := p.refuses(); err != nil {
		p.mu.Unlock()
		return err.(*AppendError).with(true)
	}
	f := p.beginFlush(level)
	p.mu.Unlock()
	select {
	case <-f.done:
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		select {
		case <-f.done:
		default:
			f.abandoned = true
			p.session.pruneFlushes()
			return ctx.Err()
		}
	}
	if f.err != nil {
		return f.err
	}
	return nil
}

func (p *Producer) beginFlush(level Level) *flushWait {
	now := time.Now()
	if e := p.session.entries.last(); e != nil {
		e.seal()
	}
	p.report(now, true)
	f := &flushWait{order: p.session.nextOrder, level: level, since: now, done: make(chan struct{})}
	p.session.flushes = append(p.session.flushes, f)
	p.rouse()
	return f
}

// Close brings everything that was handed over to the producer's level, says good-bye (unless the id was chosen) and
// ends. Any later append is an error. If the context ends first, what is left ends with [ErrClosed].
func (p *Producer) Close(ctx context.Context) error {
	p.mu.Lock()
	if err := p.refuses(); err != nil {
		p.mu.Unlock()
		<-p.done
		return err.(*AppendError).with(true)
	}
	f := p.beginFlush(p.opts.Level)
	p.life = lifeClosing
	p.callNext()
	p.rouse()
	p.mu.Unlock()
	select {
	case <-p.done:
	case <-ctx.Done():
		p.mu.Lock()
		if p.life == lifeClosing {
			p.life = lifeAborted
		}
		p.halt()
		if p.conn != nil {
			p.conn.Close()
		}
		p.rouse()
		p.mu.Unlock()
		<-p.done
	}
	<-f.done
	if f.err != nil {
		return f.err
	}
	return nil
}

// Ticket resolves once, when the records have reached their level or it is known that they will not. Dropping it
// cancels nothing.
type Ticket struct {
	done    chan struct{}
	receipt Receipt
	err     *AppendError
}

func newTicket() *Ticket { return &Ticket{done: make(chan struct{})} }

func (t *Ticket) resolve(receipt Receipt, err *AppendError) {
	t.receipt, t.err = receipt, err
	close(t.done)
}

// Done is closed when the ticket has resolved.
func (t *Ticket) Done() <-chan struct{} { return t.done }

// Wait waits for the outcome: a receipt, an [*AppendError], or the error of the context. It may be called again.
func (t *Ticket) Wait(ctx context.Context) (Receipt, error) {
	select {
	case <-t.done:
	default:
		select {
		case <-t.done:
		case <-ctx.Done():
			return Receipt{}, ctx.Err()
		}
	}
	if t.err != nil {
		return Receipt{}, t.err
	}
	return t.receipt, nil
}
