package clad

import (
	"context"
	"encoding"
	"fmt"
	"log/slog"
	"math"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"clad/internal/wire"
)

// HandlerOptions of a [Handler]. Every one has a default: the zero value.
type HandlerOptions struct {
	// Level is the least level that is logged. Default: [slog.LevelInfo].
	Level slog.Leveler
	// Ack is the level of safety that each record is brought to, behind the caller's back. Default: the producer's. On a
	// log that does not offer it each record is dropped and counted, and one line on stderr says so.
	Ack Level
	// WhenFull is what happens when there is no room. Default: [DropNewest], so that a call never waits. A call blocks no
	// longer than this says.
	WhenFull *WhenFull
	// AddSource adds `code.function.name`, `code.file.path` and `code.line.number`.
	AddSource bool
	// Span finds the span of a context, where tracing is in use; false: there is none.
	Span func(ctx context.Context) (Span, bool)
}

// Span is a span of a trace.
type Span struct {
	TraceID [16]byte
	SpanID  [8]byte
	// Flags are the W3C trace flags.
	Flags byte
}

// Handler is an [slog.Handler] that hands records to a [Producer], and waits for no answer.
//
// The message is the body, attributes keep their types, groups are maps. Levels are OpenTelemetry's severity numbers
// (debug 5, info 9, warn 13, error 17; others between). A call never panics and allocates nothing in steady state. Text
// that is not UTF-8 is mended (U+FFFD), what is nested more than 30 deep becomes text, an attribute whose method panics
// says so. A record that is longer than the daemon takes is cut; attributes that have no room are counted as dropped.
//
// What does not reach the log is counted in [Stats.Dropped] and reported by a record of its own; [Producer.Flush] before
// the program ends brings everything home.
type Handler struct {
	p      *Producer
	opts   HandlerOptions
	full   WhenFull
	groups []handlerGroup // the first has no name
	// dropped attributes of those that were given before.
	dropped uint32
	// warned is shared by all handlers that were made of one.
	warned *sync.Once
}

// handlerGroup is an open group and the attributes that were given in it, encoded.
type handlerGroup struct {
	name  string
	attrs []byte
	count uint32
}

// NewHandler makes a handler; opts may be nil.
func NewHandler(p *Producer, opts *HandlerOptions) *Handler {
	h := &Handler{p: p, full: DropNewest, groups: make([]handlerGroup, 1), warned: new(sync.Once)}
	if opts != nil {
		h.opts = *opts
	}
	if h.opts.WhenFull != nil {
		h.full = *h.opts.WhenFull
	}
	if h.opts.Level == nil {
		h.opts.Level = slog.LevelInfo
	}
	orDefault(&h.opts.Ack, p.opts.Level)
	return h
}

// Enabled says whether a level is logged.
func (h *Handler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.opts.Level.Level()
}

// WithAttrs is a handler whose records have these attributes, too. They are encoded now.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	if len(attrs) == 0 {
		return h
	}
	copied := h.clone(0)
	last := &copied.groups[len(copied.groups)-1]
	e := slogEncoder{encoder: encoder{buf: append([]byte(nil), last.attrs...)}, text: 64 << 10, limit: 256 << 10}
	for _, a := range attrs {
		e.attr(a, h.depth())
	}
	last.attrs, last.count = e.buf, last.count+uint32(len(attrs))
	copied.dropped += e.dropped
	return copied
}

// WithGroup is a handler that puts what comes later into a group.
func (h *Handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	copied := h.clone(1)
	copied.groups[len(copied.groups)-1] = handlerGroup{name: strings.ToValidUTF8(name, "\uFFFD")}
	return copied
}

func (h *Handler) clone(more int) *Handler {
	copied := *h
	copied.groups = make([]handlerGroup, len(h.groups)+more)
	copy(copied.groups, h.groups)
	return &copied
}

// depth is the number of lists that an attribute of a record lies in.
func (h *Handler) depth() int { return min(len(h.groups)-1, wire.NestingMax) }

var slogScratches = sync.Pool{New: func() any { return &slogEncoder{} }}

// Handle hands over a record. Its error says that the record was dropped; [slog.Logger] ignores it.
func (h *Handler) Handle(ctx context.Context, r slog.Record) (err error) {
	e := slogScratches.Get().(*slogEncoder)
	defer func() {
		if what := recover(); what != nil {
			err = h.p.lost(1, &AppendError{Reason: ReasonBadRecord, Err: fmt.Errorf("a panic while logging: %v", what)})
		}
		if cap(e.buf) <= 64<<10 {
			slogScratches.Put(e)
		}
	}()
	if ctx == nil {
		ctx = context.Background()
	}
	limit, offered := h.p.recordLimits(h.opts.Ack)
	if !offered {
		return h.refuse(unreachable(h.opts.Ack))
	}
	e.reset(math.MaxInt, limit)
	h.encode(ctx, e, &r)
	if len(e.buf) > limit || e.dropped > 0 {
		e.reset(limit/16, limit/2)
		h.encode(ctx, e, &r)
	}
	if e.err != nil || len(e.buf) > limit {
		return h.p.lost(1, &AppendError{Reason: ReasonBadRecord, Err: e.err})
	}
	it := item{bytes: e.buf, count: 1, level: h.opts.Ack, severity: severityOf(r.Level)}
	return h.p.put(ctx, it, h.full)
}

// refuse drops a record that the log would refuse, as it would each later one: the first is worth a line on stderr. The
// line does not hold up its caller, whoever reads stderr.
func (h *Handler) refuse(err error) error {
	h.warned.Do(func() { go fmt.Fprintf(os.Stderr, "clad: records are dropped: %v\n", err) })
	return h.p.lost(1, err)
}

// recordLimits is the longest record that fits, and whether the log offers a level, as far as is known: without a
// connection the next one decides, and who never connected again would never learn.
func (p *Producer) recordLimits(level Level) (longest int, offered bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	offered = level != Posted && (p.session.link == nil || level <= p.info.Highest)
	return min(p.maxRecord, p.opts.MaxBufferedBytes-len(p.group)-appendOverhead), offered
}

func severityOf(l slog.Level) Severity {
	return Severity(min(max(int(l)+int(SeverityInfo), int(SeverityTrace)), 24))
}

func severityText(l slog.Level) string {
	switch l {
	case slog.LevelDebug:
		return "DEBUG"
	case slog.LevelInfo:
		return "INFO"
	case slog.LevelWarn:
		return "WARN"
	case slog.LevelError:
		return "ERROR"
	}
	return l.String()
}

func (h *Handler) encode(ctx context.Context, e *slogEncoder, r *slog.Record) {
	var span Span
	traced := false
	if h.opts.Span != nil {
		span, traced = h.opts.Span(ctx)
	}
	head := recordHead{severityOf(r.Level), uint8(KindString), Nanos(r.Time), 0, uint32(span.Flags)}
	start := e.head(head)
	e.body(r.Message)
	e.endBody(start)
	e.textField(2, severityText(r.Level))
	h.attributes(e, r)
	e.countField(4, e.dropped+h.dropped)
	if traced {
		e.bytesField(5, span.TraceID[:])
		e.bytesField(6, span.SpanID[:])
	}
	e.endRecord(start)
}

// attributes writes field 3: the attributes, with the open groups as maps in each other.
func (h *Handler) attributes(e *slogEncoder, r *slog.Record) {
	before := len(e.buf)
	var at int
	e.buf, at = wire.Open(append(e.buf, 3))
	content := len(e.buf)
	if h.opts.AddSource && r.PC != 0 {
		e.buf = append(e.buf, sourceOf(r.PC)...)
	}
	h.group(e, r, 0)
	if len(e.buf) == content {
		e.buf = e.buf[:before]
		return
	}
	e.buf = wire.Close(e.buf, at)
}

// group writes the attributes of an open group, and those inside. An empty one is left out. Groups nested deeper than
// the encoding allows are not opened: what lies in them comes to stand in the deepest.
func (h *Handler) group(e *slogEncoder, r *slog.Record, i int) {
	e.raw(h.groups[i].attrs, h.groups[i].count)
	if i+1 == len(h.groups) {
		depth := h.depth()
		r.Attrs(func(a slog.Attr) bool {
			e.attr(a, depth)
			return true
		})
		return
	}
	if i >= wire.NestingMax {
		h.group(e, r, i+1)
		return
	}
	before := len(e.buf)
	e.buf = wire.PutText(e.buf, h.groups[i+1].name)
	var at int
	e.buf, at = wire.Open(append(e.buf, byte(KindMap)))
	content := len(e.buf)
	h.group(e, r, i+1)
	if len(e.buf) == content {
		e.buf = e.buf[:before]
		return
	}
	e.buf = wire.Close(e.buf, at)
}

var sources sync.Map // from a program counter to its encoded attributes; as many as there are log calls

func sourceOf(pc uintptr) []byte {
	if known, ok := sources.Load(pc); ok {
		return known.([]byte)
	}
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	e := encoder{}
	e.pairs([]Attr{
		KV("code.function.name", strings.ToValidUTF8(frame.Function, "\uFFFD")),
		KV("code.file.path", strings.ToValidUTF8(frame.File, "\uFFFD")), KV("code.line.number", frame.Line),
	}, 0)
	sources.Store(pc, e.buf)
	return e.buf
}

// slogEncoder writes attributes as slog has them.
type slogEncoder struct {
	encoder
	// text is the longest text that is written whole; limit is where attributes are no longer written.
	text, limit int
	dropped     uint32
}

func (e *slogEncoder) reset(text, limit int) {
	e.buf, e.err, e.dropped = e.buf[:0], nil, 0
	e.text, e.limit = text, limit
}

// cut answers a text that is UTF-8 and not too long.
func (e *slogEncoder) cut(text string) string {
	text = wire.Cut(text, e.text)
	if !utf8.ValidString(text) {
		text = wire.Cut(strings.ToValidUTF8(text, "\uFFFD"), e.text)
	}
	return text
}

func (e *slogEncoder) body(text string) { e.buf = append(e.buf, e.cut(text)...) }

func (e *slogEncoder) str(text string) {
	e.buf = wire.PutText(append(e.buf, byte(KindString)), e.cut(text))
}

// raw writes attributes that are encoded already.
func (e *slogEncoder) raw(attrs []byte, count uint32) {
	if len(e.buf)+len(attrs) > e.limit {
		e.dropped += count
		return
	}
	e.buf = append(e.buf, attrs...)
}

// attr writes an attribute that lies in so many lists.
func (e *slogEncoder) attr(a slog.Attr, depth int) {
	if a.Value.Kind() == slog.KindLogValuer {
		a.Value = a.Value.Resolve() // a LogValue that panics becomes an error value
	}
	if a.Key == "" && a.Value.Kind() == slog.KindAny && a.Value.Any() == nil {
		return // slog: an empty attribute is ignored
	}
	before := len(e.buf)
	if before > e.limit {
		e.dropped++
		return
	}
	if a.Value.Kind() == slog.KindGroup {
		e.groupAttr(a, depth)
	} else {
		e.buf = wire.PutText(e.buf, e.cut(a.Key))
		e.value(a.Value, depth)
	}
	if len(e.buf) > e.limit/2*3 {
		e.buf = e.buf[:before]
		e.dropped++
	}
}

func (e *slogEncoder) groupAttr(a slog.Attr, depth int) {
	attrs := a.Value.Group()
	if len(attrs) == 0 {
		return
	}
	if a.Key == "" {
		for _, inner := range attrs {
			e.attr(inner, depth)
		}
		return
	}
	e.buf = wire.PutText(e.buf, e.cut(a.Key))
	e.group(a.Value, depth)
}

func (e *slogEncoder) group(v slog.Value, depth int) {
	if depth >= wire.NestingMax {
		e.str(deepText(v))
		return
	}
	var at int
	e.buf, at = wire.Open(append(e.buf, byte(KindMap)))
	for _, inner := range v.Group() {
		e.attr(inner, depth+1)
	}
	e.buf = wire.Close(e.buf, at)
}

// deepText is a value that is nested too deep, as text.
func deepText(v slog.Value) (text string) {
	defer func() {
		if what := recover(); what != nil {
			text = fmt.Sprintf("!PANIC: %v", what)
		}
	}()
	return v.String()
}

func (e *slogEncoder) value(v slog.Value, depth int) {
	switch v.Kind() {
	case slog.KindString:
		e.str(v.String())
	case slog.KindInt64:
		e.int(v.Int64())
	case slog.KindUint64:
		e.uint(v.Uint64())
	case slog.KindFloat64:
		e.double(v.Float64())
	case slog.KindBool:
		e.bool(v.Bool())
	case slog.KindDuration:
		e.int(int64(v.Duration()))
	case slog.KindTime:
		e.time(v.Time())
	case slog.KindGroup:
		e.group(v, depth)
	default:
		e.safely(v.Any(), depth)
	}
}

func (e *slogEncoder) int(n int64) { e.buf = wire.PutVarint(append(e.buf, byte(KindInt)), n) }

// uint: what no signed number holds becomes text, so that no digit is lost.
func (e *slogEncoder) uint(n uint64) {
	if n > math.MaxInt64 {
		e.str(fmt.Sprint(n))
		return
	}
	e.int(int64(n))
}

func (e *slogEncoder) double(f float64) {
	e.buf = le.AppendUint64(append(e.buf, byte(KindDouble)), math.Float64bits(f))
}

func (e *slogEncoder) bool(b bool) {
	kind := byte(KindBool)
	if b {
		kind = codeTrue
	}
	e.buf = append(e.buf, kind)
}

func (e *slogEncoder) time(t time.Time) {
	var text [64]byte
	b := t.AppendFormat(text[:0], time.RFC3339Nano)
	e.buf = wire.PutBytes(append(e.buf, byte(KindString)), b)
}

// safely writes a value of any type. If its own code panics, the value says so.
func (e *slogEncoder) safely(v any, depth int) {
	before := len(e.buf)
	defer func() {
		if what := recover(); what != nil {
			e.buf = e.buf[:before]
			if rv := reflect.ValueOf(v); rv.Kind() == reflect.Pointer && rv.IsNil() {
				e.str("<nil>") // a method called on nothing, as fmt has it
			} else {
				e.str(fmt.Sprintf("!PANIC: %v", what))
			}
		}
	}()
	e.any(v, depth)
}

func (e *slogEncoder) any(v any, depth int) {
	switch v := v.(type) {
	case nil:
		e.buf = append(e.buf, byte(KindEmpty))
	case Value:
		e.own(v, depth)
	case slog.LogValuer:
		e.value(slog.AnyValue(v).Resolve(), depth)
	case []byte:
		e.buf = wire.PutBytes(append(e.buf, byte(KindBytes)), v[:min(len(v), e.text)])
	case error:
		e.str(v.Error())
	case encoding.TextMarshaler:
		text, err := v.MarshalText()
		if err != nil {
			e.str("!ERROR: " + err.Error())
			return
		}
		e.str(string(text))
	case fmt.Stringer:
		e.str(v.String())
	case string:
		e.str(v)
	case bool:
		e.bool(v)
	default:
		e.reflected(reflect.ValueOf(v), depth)
	}
}

// own writes a Value of this package; one that does not go in becomes empty.
func (e *slogEncoder) own(v Value, depth int) {
	before := len(e.buf)
	inner := encoder{buf: e.buf}
	inner.value(&v, depth)
	e.buf = inner.buf
	if inner.err != nil {
		e.buf = e.buf[:before]
		e.str("!ERROR: " + inner.err.Error())
	} else if v.kind == KindAbsent {
		e.buf[before] = byte(KindEmpty)
	}
}

// reflected writes slices as arrays, maps as maps, in whatever types they are; other things as fmt prints them.
func (e *slogEncoder) reflected(v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		e.int(v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		e.uint(v.Uint())
	case reflect.Float32, reflect.Float64:
		e.double(v.Float())
	case reflect.String:
		e.str(v.String())
	case reflect.Bool:
		e.bool(v.Bool())
	case reflect.Slice, reflect.Array, reflect.Map:
		if depth >= wire.NestingMax {
			e.str(fmt.Sprintf("%v, nested too deep", v.Type())) // fmt does not end where a map has itself
			return
		}
		e.list(v, depth)
	default:
		e.str(fmt.Sprintf("%+v", v.Interface()))
	}
}

func (e *slogEncoder) list(v reflect.Value, depth int) {
	kind := KindArray
	if v.Kind() == reflect.Map {
		kind = KindMap
	}
	var at int
	e.buf, at = wire.Open(append(e.buf, byte(kind)))
	if kind == KindMap {
		for pairs := v.MapRange(); pairs.Next() && len(e.buf) <= e.limit; {
			e.buf = wire.PutText(e.buf, e.cut(fmt.Sprint(pairs.Key().Interface())))
			e.element(pairs.Value(), depth)
		}
	} else {
		for i := 0; i < v.Len() && len(e.buf) <= e.limit; i++ {
			e.element(v.Index(i), depth)
		}
	}
	e.buf = wire.Close(e.buf, at)
}

func (e *slogEncoder) element(v reflect.Value, depth int) {
	if v.Kind() == reflect.Interface && v.IsNil() {
		e.buf = append(e.buf, byte(KindEmpty))
		return
	}
	e.safely(v.Interface(), depth+1)
}
