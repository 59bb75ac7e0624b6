package clad

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"clad/internal/wire"
)

// sink is a daemon that takes everything, and answers with large steps, so that it costs little.
func sink(t testing.TB, opts Options) (*Producer, func() []Record) {
	f := newFake(t)
	var lock sync.Mutex
	var records []Record
	kept := opts.MaxAppendRecords == 1
	go func() {
		c := f.accept()
		c.welcome(func(w *wire.Welcome) { w.Window = 256 })
		c.conn.SetReadDeadline(time.Time{})
		offset := uint64(100)
		var body, answer []byte
		var head [wire.HeaderBytes]byte
		for {
			if _, err := io.ReadFull(c.in, head[:]); err != nil {
				return
			}
			h, err := wire.ParseHeader(head[:])
			if err != nil {
				t.Error(err)
				return
			}
			if cap(body) < int(h.Len) {
				body = make([]byte, h.Len)
			}
			body = body[:h.Len]
			io.ReadFull(c.in, body)
			answer = answer[:0]
			switch h.Type {
			case wire.TAppend:
				head, payload, err := wire.ParseAppend(body)
				if err != nil {
					t.Error(err)
				}
				if kept {
					_, these, err := DecodePayload(payload, head.Count)
					if err != nil {
						t.Error(err)
					}
					lock.Lock()
					records = append(records, these...)
					lock.Unlock()
				}
				answer = appendAnswer(answer, head.FirstSeq, offset, head.Count)
				offset += uint64(head.Count)
			case wire.TFlush:
				answer = wire.Watermark{RequestID: h.RequestID, Offset: offset, EpochFirst: 100, Epoch: 3, Level: body[0]}.Put(nil)
			case wire.TBye:
				c.cut()
				return
			}
			c.conn.Write(answer)
		}
	}()
	p := must(Dial(f.addr, opts))
	t.Cleanup(func() { p.Close(within(t)) })
	return p, func() []Record {
		if err := p.Flush(within(t), Highest); err != nil {
			t.Error(err)
		}
		lock.Lock()
		defer lock.Unlock()
		got := records
		records = nil
		return got
	}
}

// appendAnswer writes ACCEPTED and a watermark that covers it, and allocates nothing.
func appendAnswer(b []byte, seq, offset uint64, count uint32) []byte {
	at := len(b)
	b = wire.PutHeader(b, wire.Header{Type: wire.TAccepted, Len: 32})
	b = le.AppendUint64(le.AppendUint64(b, seq), offset)
	b = append(le.AppendUint32(le.AppendUint32(b, count), 3), 0, 0, 0, 0)
	b = le.AppendUint32(b, wire.CRC(b[at+wire.HeaderBytes:]))
	at = len(b)
	b = wire.PutHeader(b, wire.Header{Type: wire.TWatermark, Len: 28})
	b = le.AppendUint64(le.AppendUint64(b, offset+uint64(count)), 100)
	b = append(le.AppendUint32(b, 3), 4, 0, 0, 0)
	return le.AppendUint32(b, wire.CRC(b[at+wire.HeaderBytes:]))
}

func show(attrs []Attr) string {
	var b strings.Builder
	for i, a := range attrs {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%s=%s", a.Key, showValue(a.Value))
	}
	return b.String()
}

func showValue(v Value) string {
	switch v.Kind() {
	case KindString:
		return v.Text()
	case KindInt:
		return fmt.Sprint(v.Int())
	case KindDouble:
		return fmt.Sprint(v.Double(), "f")
	case KindBool:
		return fmt.Sprint(v.Bool())
	case KindBytes:
		return fmt.Sprintf("%x", v.Bytes())
	case KindMap:
		return "{" + show(v.Map()) + "}"
	case KindArray:
		var parts []string
		for _, e := range v.Array() {
			parts = append(parts, showValue(e))
		}
		return fmt.Sprint(parts)
	case KindEmpty:
		return "empty"
	}
	return "absent"
}

type valuer struct{ v any }

func (v valuer) LogValue() slog.Value { return slog.AnyValue(v.v) }

type panics struct{}

func (*panics) LogValue() slog.Value { panic("in LogValue") }

type panicsInString struct{}

func (*panicsInString) String() string { panic("in String") }

type panicsInError struct{ why *string }

func (e *panicsInError) Error() string { return *e.why }

func onlyLine(text string) string { line, _, _ := strings.Cut(text, "\n"); return line }

func TestTheHandlerKeepsTypesGroupsAndLevels(t *testing.T) {
	p, got := sink(t, quick())
	when := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	span := Span{TraceID: [16]byte{1}, SpanID: [8]byte{2}, Flags: 1}
	h := NewHandler(p, &HandlerOptions{Level: slog.Level(-8), Span: func(ctx context.Context) (Span, bool) {
		s, ok := ctx.Value(span).(Span)
		return s, ok
	}})
	log := slog.New(h)
	log.LogAttrs(context.Background(), slog.LevelInfo, "all", slog.String("s", "x"), slog.Int("i", -5), slog.Uint64("u", 7),
		slog.Uint64("big", math.MaxUint64), slog.Float64("f", 1.5), slog.Bool("b", true), slog.Duration("d", time.Second),
		slog.Time("t", when), slog.Any("bytes", []byte{0xFF}), slog.Any("err", errors.New("bad")), slog.Any("nil", nil),
		slog.Any("list", []any{1, "a", []int{2}}), slog.Any("map", map[string]int{"k": 1}), slog.Any("ip", net.IPv4(1, 2, 3, 4)),
		slog.Any("valuer", valuer{"v"}), slog.Any("deep", valuer{valuer{slog.GroupValue(slog.Int("x", 1))}}),
		slog.Any("struct", struct{ A int }{3}), slog.Any("own", Array(Bool(false))), slog.Any("named", slog.LevelWarn),
		slog.Group("g", slog.Int("a", 1), slog.Group("h", slog.Int("b", 2)), slog.Group("none")),
		slog.Group("", slog.Int("inline", 1)), slog.Attr{}, slog.Group("empty"))
	want := "s=x i=-5 u=7 big=18446744073709551615 f=1.5f b=true d=1000000000 t=2026-01-02T03:04:05.000000006Z bytes=ff " +
		"err=bad nil=empty list=[1 a [2]] map={k=1} ip=1.2.3.4 valuer=v deep={x=1} struct={A:3} own=[false] named=WARN " +
		"g={a=1 h={b=2}} inline=1"
	for _, r := range got() {
		if text := show(r.Attributes); text != want {
			t.Errorf("\n%s\n%s", text, want)
		}
		if r.Body.Text() != "all" || r.Severity != 9 || r.SeverityText != "INFO" || r.Time == 0 || r.TraceID != nil {
			t.Errorf("%+v", r)
		}
	}
	log.WithGroup("never").Info("nothing in it")
	log.With("a", 1).WithGroup("g").With("b", 2).WithGroup("h").InfoContext(context.WithValue(context.Background(), span, span), "m", "c", 3)
	log.WithGroup("g").WithGroup("h").With(slog.Group("i")).Debug("m")
	records := got()
	if len(records) != 3 || show(records[0].Attributes) != "" || show(records[1].Attributes) != "a=1 g={b=2 h={c=3}}" ||
		show(records[2].Attributes) != "" || records[2].Severity != SeverityDebug {
		t.Fatalf("%+v", records)
	}
	if r := records[1]; string(r.TraceID) != string(span.TraceID[:]) || string(r.SpanID) != string(span.SpanID[:]) || r.Flags != 1 {
		t.Errorf("%+v", r)
	}
	for level, want := range map[slog.Level]Severity{-100: 1, -8: 1, -4: 5, 0: 9, 2: 11, 4: 13, 8: 17, 12: 21, 100: 24} {
		log.Log(context.Background(), level, "m")
		if r := got(); level >= -8 && (len(r) != 1 || r[0].Severity != want || r[0].SeverityText != level.String()) {
			t.Errorf("%v: %+v", level, r)
		}
	}
	slog.New(NewHandler(p, &HandlerOptions{AddSource: true})).Info("here")
	text := show(got()[0].Attributes)
	if !strings.Contains(text, "code.function.name=clad.TestTheHandlerKeepsTypesGroupsAndLevels code.file.path=/") ||
		!strings.Contains(text, "handler_test.go code.line.number=") {
		t.Error(text)
	}
	if slog.New(NewHandler(p, nil)).Enabled(context.Background(), slog.LevelDebug) {
		t.Error("debug is on")
	}
}

// What makes a logging call fail elsewhere: it never panics, and something of it is in the log.
func TestBadAttributes(t *testing.T) {
	p, got := sink(t, quick())
	log := slog.New(NewHandler(p, nil))
	nested := slog.Int("x", 1)
	for range 100 {
		nested = slog.Group("g", nested)
	}
	var list any = 1
	for range 100 {
		list = []any{list}
	}
	itself := map[string]any{}
	itself["a"], itself["b"] = itself, itself
	huge := strings.Repeat("x", 2<<20)
	var deep slog.Handler = log.Handler()
	for range 100 {
		deep = deep.WithGroup("g").WithAttrs([]slog.Attr{slog.Int("a", 1)})
	}
	odd := []any{"k"}
	many := make([]any, 0, 20000)
	for i := range 10000 {
		many = append(many, fmt.Sprint("key", i), strings.Repeat("y", 1000))
	}
	for name, call := range map[string]func(){
		"NaN":            func() { log.Info("m", "f", math.NaN(), "g", math.Inf(-1)) },
		"NUL":            func() { log.Info("a\x00b", "k\x00", "v\x00") },
		"not UTF-8":      func() { log.Info("a\xFFb", "k\xFF", "v\xFF\xC3") },
		"2 MiB":          func() { log.Info(huge, "k", huge, huge, "v", "b", []byte(huge)) },
		"many":           func() { log.Info("m", many...) },
		"many before":    func() { log.With(many...).Info("m") },
		"nested":         func() { log.Info("m", nested, "list", list) },
		"groups":         func() { slog.New(deep).Info("m", "k", 1) },
		"itself":         func() { log.Info("m", "k", itself) },
		"panics":         func() { log.Info("m", "k", &panics{}, "l", &panicsInString{}, "e", &panicsInError{}) },
		"nil pointers":   func() { log.Info("m", "k", (*panics)(nil), "l", (*panicsInError)(nil), "n", (*net.IPNet)(nil)) },
		"odd":            func() { log.Info("m", odd...) },
		"strange values": func() { log.Info("m", "c", make(chan int), "f", func() {}, "m", map[any]any{nil: nil, 1.5: "x"}) },
		"nil context":    func() { log.InfoContext(nil, "m") }, //nolint
		"no time":        func() { log.Handler().Handle(context.Background(), slog.Record{}) },
	} {
		call()
		records := got()
		if len(records) != 1 {
			t.Errorf("%s: %d records, %+v", name, len(records), p.Stats())
			continue
		}
		text := show(records[0].Attributes)
		switch name {
		case "NaN":
			if text != "f=NaNf g=-Inff" {
				t.Error(text)
			}
		case "NUL":
			if text != "k\x00=v\x00" || records[0].Body.Text() != "a\x00b" {
				t.Errorf("%q", text)
			}
		case "not UTF-8":
			if text != "k\uFFFD=v\uFFFD" || records[0].Body.Text() != "a\uFFFDb" {
				t.Errorf("%q", text)
			}
		case "2 MiB":
			if n := len(records[0].Body.Text()); n != 2<<20/16 || len(records[0].Attributes) != 3 {
				t.Errorf("%d %d", n, len(records[0].Attributes))
			}
		case "many", "many before":
			if n := len(records[0].Attributes) + int(records[0].DroppedAttributes); n != 10000 || records[0].DroppedAttributes == 0 {
				t.Errorf("%s: %d %d", name, n, records[0].DroppedAttributes)
			}
		case "panics":
			if want := "k=LogValue panicked"; onlyLine(text) != want || !strings.Contains(text, "l=!PANIC: in String e=!PANIC: ") {
				t.Errorf("%q", text)
			}
		}
	}
	if s := p.Stats(); s.Dropped != 0 {
		t.Errorf("%+v", s)
	}
}

func TestAHandlerNeverWaitsAndItsDropsAreCounted(t *testing.T) {
	opts := quick()
	opts.MaxBufferedBytes = 8 << 10
	_, p := startFake(t, opts)
	log := slog.New(NewHandler(p, nil))
	var all sync.WaitGroup
	for range 64 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 100 {
				log.Info("m", "k", strings.Repeat("x", 100))
			}
		}()
	}
	all.Wait()
	if s := p.Stats(); s.Submitted != 6400 || s.Dropped == 0 || s.Dropped+s.PendingAppends != 6400 || s.BufferedBytes > 8<<10 {
		t.Errorf("%+v", s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p.Close(ctx)
	log.Info("after the end")
	if s := p.Stats(); s.Submitted != 6401 || s.Dropped != 6401 {
		t.Errorf("%+v", s)
	}
}

// A log that offers less than is asked for: a line on stderr, once; every record is counted, and the report of them
// arrives. The records from before the greeting are refused by the daemon, once each.
func TestAHandlerSaysOnceThatItsLevelIsNotOffered(t *testing.T) {
	before := os.Stderr
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stderr = w
	defer func() { os.Stderr = before }()
	opts := quick()
	opts.Level = Durable
	f, p := startFake(t, opts)
	log := slog.New(NewHandler(p, nil))
	for range 3 {
		log.Info("before the greeting")
	}
	c := f.accept()
	c.welcome(func(w *wire.Welcome) { w.Highest = Received.code(); w.Policy = uint8(PolicyFireAndForget) })
	for seq := range uint64(3) {
		c.refuse(c.expect(seq, Durable, false).FirstSeq, CodeLevelUnreachable, 0)
	}
	waitFor(t, func() bool { return p.Stats().Dropped == 3 })
	ctx := context.Background()
	handler := log.With("a", 1).WithGroup("g").Handler()
	for range 100 {
		log.Info("dropped")
		err := handler.Handle(ctx, slog.Record{Message: "dropped"})
		if code := err.(*AppendError); code.Code() != CodeLevelUnreachable || code.MaybeWritten {
			t.Fatal(err)
		}
	}
	if s := p.Stats(); s.Submitted != 203 || s.Dropped != 203 || s.PendingAppends > 1 {
		t.Errorf("%+v", s)
	}
	// Nothing else comes: no record is sent again, and the report is at a level that there is.
	flushed := make(chan error, 1)
	go func() { flushed <- p.Flush(within(t), Highest) }()
	reported := int64(0)
	for seq := uint64(3); reported < 203; seq++ {
		head, records := c.append()
		if head.Level != Received.code() || records[0].EventName != "clad.records_dropped" {
			t.Fatalf("%+v %+v", head, records)
		}
		reported += records[0].Attributes[0].Value.Int()
		c.accepted(head.FirstSeq, 97+seq, 3)
		c.mark(Received, 98+seq, 100, 3)
	}
	if err := <-flushed; err == nil || err.(*AppendError).Code() != CodeLevelUnreachable {
		t.Error(err)
	}
	if s := p.Stats(); s.ReportedDrops != 203 || s.Resent != 0 {
		t.Errorf("%+v", s)
	}
	// A daemon that offers it again gets the next record.
	c.cut()
	waitFor(t, func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.session.link == nil })
	log.Info("stored")
	c = f.accept()
	c.welcome()
	if _, records := c.append(); records[0].Body.Text() != "stored" {
		t.Errorf("%+v", records)
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "clad: records are dropped: ") || !strings.Contains(line, "level durable") {
		t.Errorf("%q %v", line, err)
	}
	w.Close()
	if rest, _ := io.ReadAll(r); len(rest) != 0 {
		t.Errorf("%q", rest)
	}
}

func TestACallAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	p, _ := sink(t, Options{Component: "t"})
	log := slog.New(NewHandler(p, nil))
	inner := slog.New(NewHandler(p, nil)).With("a", 1).WithGroup("g")
	ctx := context.Background()
	for name, call := range map[string]func(){
		"three attributes": func() {
			log.LogAttrs(ctx, slog.LevelInfo, "paid", slog.String("user", "u"), slog.Int("items", 3), slog.Float64("sum", 1.5))
		},
		"in a group": func() { inner.LogAttrs(ctx, slog.LevelInfo, "paid", slog.Int("items", 3)) },
		"Info":       func() { log.Info("paid", "user", "u", "items", 3, "ok", true) },
	} {
		for range 20000 { // until buffers are as large as they get
			call()
		}
		if err := p.Flush(within(t), Highest); err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(20000, call); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if s := p.Stats(); s.Dropped > s.Submitted/2 {
		t.Errorf("%+v", s)
	}
}

func BenchmarkHandler(b *testing.B) {
	p, _ := sink(b, Options{Component: "t"})
	benchmark(b, p)
}

// BenchmarkHandlerWithADaemon makes bursts of 256 calls with a pause after each, as a busy program does, and tells how
// long single calls take.
func BenchmarkHandlerWithADaemon(b *testing.B) {
	d := newDaemon(b).start()
	p := must(Dial(d.unix(), Options{Component: "t"}))
	defer p.Close(within(b))
	log := slog.New(NewHandler(p, nil))
	took := make([]time.Duration, b.N)
	ctx := context.Background()
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		start := time.Now()
		log.LogAttrs(ctx, slog.LevelInfo, "paid", slog.String("user", "u"), slog.Int("items", 3), slog.Float64("sum", 1.5))
		took[i] = time.Since(start)
		if i%256 == 255 {
			time.Sleep(2 * time.Millisecond)
		}
	}
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[b.N/2]), "ns-p50")
	b.ReportMetric(float64(took[b.N*99/100]), "ns-p99")
	b.ReportMetric(float64(p.Stats().Dropped), "dropped")
}

func benchmark(b *testing.B, p *Producer) {
	log := slog.New(NewHandler(p, nil))
	ctx := context.Background()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		log.LogAttrs(ctx, slog.LevelInfo, "paid", slog.String("user", "u"), slog.Int("items", 3), slog.Float64("sum", 1.5))
	}
	b.StopTimer()
	s := p.Stats()
	b.ReportMetric(float64(s.Dropped)/float64(s.Submitted), "dropped/op")
}
