package clad

import (
	"encoding/binary"
	"errors"
	"math"
	"unicode/utf8"

	"clad/internal/wire"
)

// The encoding of groups and records (docs/PROTOCOL.md, section 3). A given content has exactly one encoding.

var (
	errTooDeep   = errors.New("nested more than 30 deep")
	errGroupSize = errors.New("resource and scope are longer than 1 MiB")
	errEntity    = errors.New("a part of a resource or scope that has none")
)

var le = binary.LittleEndian

// encoder notes the first error; what it wrote by then is thrown away.
type encoder struct {
	buf []byte
	err error
}

func (e *encoder) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

func (e *encoder) text(text string) {
	if !utf8.ValidString(text) {
		e.fail(wire.ErrNotUTF8)
	}
	e.buf = wire.PutText(e.buf, text)
}

func (e *encoder) textField(tag uint8, text string) {
	if text != "" {
		e.buf = append(e.buf, tag)
		e.text(text)
	}
}

func (e *encoder) bytesField(tag uint8, content []byte) {
	if len(content) > 0 {
		e.buf = wire.PutField(e.buf, tag, content)
	}
}

func (e *encoder) countField(tag uint8, n uint32) {
	if n != 0 {
		var number [binary.MaxVarintLen32]byte
		e.buf = wire.PutField(e.buf, tag, number[:binary.PutUvarint(number[:], uint64(n))])
	}
}

func (e *encoder) pairsField(tag uint8, pairs []Attr) {
	var at int
	e.buf, at = wire.Open(append(e.buf, tag))
	e.pairs(pairs, 0)
	e.buf = wire.Close(e.buf, at)
}

func (e *encoder) pairs(pairs []Attr, depth int) {
	for i := range pairs {
		e.text(pairs[i].Key)
		if n := pairs[i].KeyIndex; n != 0 {
			e.buf = wire.PutVarint(append(e.buf, codeKeyIndex), int64(n))
		}
		e.value(&pairs[i].Value, depth)
	}
}

// value writes the kind and the content; depth is the number of lists that it lies in.
func (e *encoder) value(v *Value, depth int) {
	switch v.kind {
	case KindBool:
		e.buf = append(e.buf, byte(KindBool)+byte(v.num))
	case KindString:
		e.buf = append(e.buf, byte(KindString))
		e.text(v.text)
	case KindBytes:
		e.buf = wire.PutBytes(append(e.buf, byte(KindBytes)), v.bytes)
	case KindArray, KindMap:
		var at int
		e.buf, at = wire.Open(append(e.buf, byte(v.kind)))
		e.content(v, depth)
		e.buf = wire.Close(e.buf, at)
	default:
		e.buf = append(e.buf, byte(v.kind))
		e.content(v, depth)
	}
}

// content writes the content without kind and length, as it lies in a body.
func (e *encoder) content(v *Value, depth int) {
	switch v.kind {
	case KindString:
		if !utf8.ValidString(v.text) {
			e.fail(wire.ErrNotUTF8)
		}
		e.buf = append(e.buf, v.text...)
	case KindBytes:
		e.buf = append(e.buf, v.bytes...)
	case KindInt, KindStringIndex:
		e.buf = wire.PutVarint(e.buf, int64(v.num))
	case KindDouble:
		e.buf = le.AppendUint64(e.buf, v.num)
	case KindArray, KindMap:
		if depth >= wire.NestingMax {
			e.fail(errTooDeep)
			return
		}
		for i := range v.array {
			e.value(&v.array[i], depth+1)
		}
		e.pairs(v.pairs, depth+1)
	}
}

func (e *encoder) unknown(fields []Field) {
	for _, f := range fields {
		e.buf = wire.PutField(e.buf, f.Tag, f.Content)
	}
}

// recordHead is the fixed part of a record, before its body.
type recordHead struct {
	severity       Severity
	body           uint8
	time, observed uint64
	flags          uint32
}

func (e *encoder) head(h recordHead) (start int) {
	start = len(e.buf)
	number := byte(0)
	if h.severity > 0 && h.severity <= math.MaxUint8 {
		number = byte(h.severity)
	}
	e.buf = append(e.buf, 0, 0, 0, 0, number, h.body, 0, 0)
	e.buf = le.AppendUint64(e.buf, h.time)
	e.buf = le.AppendUint64(e.buf, h.observed)
	e.buf = le.AppendUint32(e.buf, h.flags)
	e.buf = append(e.buf, 0, 0, 0, 0)
	return start
}

func (e *encoder) endBody(start int) {
	le.PutUint32(e.buf[start+28:], uint32(len(e.buf)-start-wire.RecordHeadBytes))
}

func (e *encoder) endRecord(start int) { le.PutUint32(e.buf[start:], uint32(len(e.buf)-start)) }

func (e *encoder) record(r *Record) {
	kind := uint8(r.Body.kind)
	if r.Body.Bool() {
		kind = codeTrue
	}
	start := e.head(recordHead{r.Severity, kind, r.Time, r.ObservedTime, r.Flags})
	e.content(&r.Body, 0)
	e.endBody(start)
	if r.Severity < 0 || r.Severity > math.MaxUint8 {
		e.buf = le.AppendUint32(append(e.buf, 1, 4), uint32(r.Severity))
	}
	e.textField(2, r.SeverityText)
	if len(r.Attributes) > 0 {
		e.pairsField(3, r.Attributes)
	}
	e.countField(4, r.DroppedAttributes)
	e.bytesField(5, r.TraceID)
	e.bytesField(6, r.SpanID)
	e.textField(7, r.EventName)
	e.unknown(r.Unknown)
	e.endRecord(start)
}

func (e *encoder) group(g *Group) {
	start := len(e.buf)
	e.buf = append(e.buf, 0, 0, 0, 0)
	if r := g.Resource; r != nil {
		e.pairsField(1, r.Attributes)
		e.countField(2, r.DroppedAttributes)
		for i := range r.Entities {
			e.entity(&r.Entities[i])
		}
	}
	e.textField(4, g.ResourceSchemaURL)
	if s := g.Scope; s != nil {
		e.buf = append(e.buf, 5)
		e.text(s.Name)
		e.textField(6, s.Version)
		if len(s.Attributes) > 0 {
			e.pairsField(7, s.Attributes)
		}
		e.countField(8, s.DroppedAttributes)
	}
	e.textField(9, g.ScopeSchemaURL)
	e.unknown(g.Unknown)
	if len(e.buf)-start > wire.GroupBytesMax {
		e.fail(errGroupSize)
	}
	le.PutUint32(e.buf[start:], uint32(len(e.buf)-start))
}

func (e *encoder) entity(r *EntityRef) {
	var at int
	e.buf, at = wire.Open(append(e.buf, 3))
	e.text(r.SchemaURL)
	e.text(r.Type)
	for _, keys := range [][]string{r.IDKeys, r.DescriptionKeys} {
		e.buf = wire.PutUvarint(e.buf, uint64(len(keys)))
		for _, key := range keys {
			e.text(key)
		}
	}
	e.buf = wire.Close(e.buf, at)
}

// EncodePayload encodes a group and records as the payload of an append. A [Producer] does it by itself.
func EncodePayload(g Group, records ...Record) ([]byte, error) {
	e := encoder{}
	e.group(&g)
	for i := range records {
		e.record(&records[i])
	}
	return e.buf, e.err
}
