package clad

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"clad/internal/wire"
)

var (
	errKind    = errors.New("a value of an unknown kind")
	errDefault = errors.New("a field that holds its default")
	errNeeds   = errors.New("a field without the one that it needs")
)

// DecodePayload decodes the payload of an append, and checks all of it. A [Reader] does it by itself.
func DecodePayload(payload []byte, count uint32) (Group, []Record, error) {
	r := wire.Reader{Rest: payload}
	n := r.U32()
	switch {
	case r.Err != nil:
		return Group{}, nil, fmt.Errorf("the group: %w", r.Err)
	case count == 0 || count > wire.AppendRecordsMax:
		return Group{}, nil, fmt.Errorf("an append of %d records", count)
	case n < 4 || n > wire.GroupBytesMax:
		return Group{}, nil, fmt.Errorf("the group: a length of %d", n)
	}
	g, err := decodeGroup(r.Take(int(n) - 4))
	if err == nil {
		err = r.Err
	}
	if err != nil {
		return Group{}, nil, fmt.Errorf("the group: %w", err)
	}
	records := make([]Record, 0, min(int(count), len(r.Rest)/wire.RecordHeadBytes))
	for i := range count {
		record, err := decodeRecord(&r)
		if err != nil {
			return Group{}, nil, fmt.Errorf("record %d: %w", i, err)
		}
		records = append(records, record)
	}
	if len(r.Rest) > 0 {
		return Group{}, nil, wire.ErrLeftOver
	}
	return g, records, nil
}

// fields calls for each tagged field. Tags ascend; from `unknown` on they may repeat, and `repeats` may too.
func fields(r *wire.Reader, unknown, repeats uint8, each func(tag uint8, f *wire.Reader)) {
	for last := uint8(0); ; {
		tag, content := r.Field()
		if tag == 0 {
			return
		}
		if tag < last || (tag == last && tag < unknown && tag != repeats) {
			r.Fail(wire.ErrFields)
			return
		}
		last = tag
		f := wire.Reader{Rest: content}
		each(tag, &f)
		if f.Err == nil && len(f.Rest) > 0 {
			f.Err = wire.ErrLeftOver
		}
		if f.Err != nil {
			r.Fail(f.Err)
			return
		}
	}
}

func all(f *wire.Reader) []byte { return append([]byte(nil), f.Take(len(f.Rest))...) }

func notEmpty(f *wire.Reader) {
	if len(f.Rest) == 0 {
		f.Fail(errDefault)
	}
}

func allText(f *wire.Reader) string {
	b := f.Take(len(f.Rest))
	if !utf8.Valid(b) {
		f.Fail(wire.ErrNotUTF8)
	}
	return string(b)
}

func someText(f *wire.Reader) string {
	notEmpty(f)
	return allText(f)
}

func dropped(f *wire.Reader) uint32 {
	n := f.Uvarint()
	if f.Err == nil && (n == 0 || n > math.MaxUint32) {
		f.Fail(errDefault)
	}
	return uint32(n)
}

func decodeGroup(content []byte) (g Group, err error) {
	r := wire.Reader{Rest: content}
	fields(&r, 10, 3, func(tag uint8, f *wire.Reader) {
		if (tag == 2 || tag == 3) && g.Resource == nil || (tag >= 6 && tag <= 8) && g.Scope == nil {
			f.Fail(errNeeds)
			return
		}
		switch tag {
		case 1:
			g.Resource = &Resource{Attributes: decodePairs(f, 0)}
		case 2:
			g.Resource.DroppedAttributes = dropped(f)
		case 3:
			g.Resource.Entities = append(g.Resource.Entities, EntityRef{
				SchemaURL: f.Text(), Type: f.Text(), IDKeys: keys(f), DescriptionKeys: keys(f),
			})
		case 4:
			g.ResourceSchemaURL = someText(f)
		case 5:
			g.Scope = &Scope{Name: allText(f)}
		case 6:
			g.Scope.Version = someText(f)
		case 7:
			notEmpty(f)
			g.Scope.Attributes = decodePairs(f, 0)
		case 8:
			g.Scope.DroppedAttributes = dropped(f)
		case 9:
			g.ScopeSchemaURL = someText(f)
		default:
			g.Unknown = append(g.Unknown, Field{Tag: tag, Content: all(f)})
		}
	})
	return g, r.Err
}

func keys(f *wire.Reader) (keys []string) {
	for n := f.Uvarint(); n > 0 && f.Err == nil; n-- {
		keys = append(keys, f.Text())
	}
	return keys
}

func decodeRecord(r *wire.Reader) (record Record, err error) {
	n := r.U32()
	if r.Err == nil && (n < wire.RecordHeadBytes || n > wire.RecordBytesMax) {
		return record, fmt.Errorf("a length of %d", n)
	}
	c := wire.Reader{Rest: r.Take(int(n) - 4)}
	if r.Err != nil {
		return record, r.Err
	}
	record.Severity = Severity(c.U8())
	kind := c.U8()
	c.Zeros(2)
	record.Time, record.ObservedTime, record.Flags = c.U64(), c.U64(), c.U32()
	body := wire.Reader{Rest: c.Take(int(c.U32()))}
	record.Body = decodeContent(kind, &body, 0)
	if body.Err == nil && len(body.Rest) > 0 {
		body.Err = wire.ErrLeftOver
	}
	if body.Err != nil {
		c.Fail(fmt.Errorf("the body: %w", body.Err))
	}
	number := record.Severity
	fields(&c, 8, 0, func(tag uint8, f *wire.Reader) {
		if tag < 8 {
			notEmpty(f)
		}
		switch tag {
		case 1:
			record.Severity = Severity(int32(f.U32()))
			if number != 0 || (record.Severity >= 0 && record.Severity <= math.MaxUint8) {
				f.Fail(errDefault)
			}
		case 2:
			record.SeverityText = allText(f)
		case 3:
			record.Attributes = decodePairs(f, 0)
		case 4:
			record.DroppedAttributes = dropped(f)
		case 5:
			record.TraceID = all(f)
		case 6:
			record.SpanID = all(f)
		case 7:
			record.EventName = allText(f)
		default:
			record.Unknown = append(record.Unknown, Field{Tag: tag, Content: all(f)})
		}
	})
	return record, c.Err
}

func decodePairs(f *wire.Reader, depth int) (pairs []Attr) {
	for len(f.Rest) > 0 && f.Err == nil {
		a := Attr{Key: f.Text()}
		kind := f.U8()
		if kind == codeKeyIndex {
			a.KeyIndex = index(f)
			if a.KeyIndex == 0 {
				f.Fail(wire.ErrNumber)
			}
			kind = f.U8()
		}
		a.Value = decodeValue(kind, f, depth)
		pairs = append(pairs, a)
	}
	return pairs
}

func index(f *wire.Reader) int32 {
	n := f.Varint()
	if n != int64(int32(n)) {
		f.Fail(wire.ErrNumber)
	}
	return int32(n)
}

// decodeValue reads what follows the kind of a value in a list.
func decodeValue(kind uint8, f *wire.Reader, depth int) Value {
	switch Kind(kind) {
	case KindString, KindBytes, KindArray, KindMap:
		content := wire.Reader{Rest: f.Delimited()}
		v := decodeContent(kind, &content, depth)
		if content.Err != nil {
			f.Fail(content.Err)
		}
		return v
	}
	return decodeContent(kind, f, depth)
}

// decodeContent reads the content of a value; depth is the number of lists that it lies in.
func decodeContent(kind uint8, f *wire.Reader, depth int) (v Value) {
	v.kind = Kind(kind)
	if (v.kind == KindArray || v.kind == KindMap) && depth >= wire.NestingMax {
		f.Fail(errTooDeep)
		return v
	}
	switch v.kind {
	case KindAbsent, KindEmpty, KindBool:
	case codeTrue:
		v = Bool(true)
	case KindString:
		v.text = allText(f)
	case KindBytes:
		v.bytes = all(f)
	case KindInt:
		v.num = uint64(f.Varint())
	case KindDouble:
		v.num = f.U64()
	case KindStringIndex:
		v.num = uint64(int64(index(f)))
	case KindArray:
		for len(f.Rest) > 0 && f.Err == nil {
			k := f.U8()
			if k == 0 && f.Err == nil {
				f.Fail(errKind) // absent is for pairs only
			}
			v.array = append(v.array, decodeValue(k, f, depth+1))
		}
	case KindMap:
		v.pairs = decodePairs(f, depth+1)
	default:
		f.Fail(errKind)
	}
	return v
}
