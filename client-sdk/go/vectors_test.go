package clad

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"clad/internal/wire"
)

// The vectors that every client passes: vectors/README.md.

func vectors(t testing.TB, name string, into any) {
	t.Helper()
	dir := os.Getenv("CLAD_VECTORS")
	if dir == "" {
		dir = "../../vectors"
	}
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// hexBytes are bytes as hex digits.
type hexBytes []byte

func (b *hexBytes) UnmarshalJSON(text []byte) (err error) {
	*b, err = hex.DecodeString(strings.Trim(string(text), `"`))
	return err
}

type jsonField struct {
	Tag     uint8
	Content hexBytes
}

type jsonPair struct {
	Key      string
	Value    jsonValue
	KeyIndex int32 `json:"key_index"`
}

// jsonValue is an object of one key, its kind.
type jsonValue struct{ Value }

func (v *jsonValue) UnmarshalJSON(text []byte) error {
	var one map[string]json.RawMessage
	if err := json.Unmarshal(text, &one); err != nil || len(one) != 1 {
		return fmt.Errorf("not a value: %s %v", text, err)
	}
	for kind, content := range one {
		var err error
		switch kind {
		case "empty":
			v.Value = Empty()
		case "string":
			v.Value, err = of(content, String)
		case "bytes":
			v.Value, err = of(content, func(b hexBytes) Value { return Bytes(b) })
		case "bool":
			v.Value, err = of(content, Bool)
		case "int":
			v.Value, err = of(content, Int)
		case "double":
			v.Value, err = of(content, func(digits string) Value {
				bits, _ := strconv.ParseUint(digits, 16, 64)
				return Value{kind: KindDouble, num: bits}
			})
		case "array":
			v.Value, err = of(content, func(values []jsonValue) Value {
				array := Array()
				for _, v := range values {
					array.array = append(array.array, v.Value)
				}
				return array
			})
		case "pairs":
			v.Value, err = of(content, func(pairs []jsonPair) Value { return Map(attrs(pairs)...) })
		case "string_index":
			v.Value, err = of(content, StringIndex)
		default:
			err = fmt.Errorf("a value of the unknown kind %s", kind)
		}
		return err
	}
	return nil
}

func of[T any](text []byte, make func(T) Value) (Value, error) {
	var content T
	err := json.Unmarshal(text, &content)
	return make(content), err
}

func attrs(pairs []jsonPair) (attrs []Attr) {
	for _, p := range pairs {
		attrs = append(attrs, Attr{p.Key, p.Value.Value, p.KeyIndex})
	}
	return attrs
}

func unknown(fields []jsonField) (unknown []Field) {
	for _, f := range fields {
		unknown = append(unknown, Field{f.Tag, f.Content})
	}
	return unknown
}

type jsonPayload struct {
	Name  string
	Group struct {
		Resource *struct {
			Attributes []jsonPair
			Dropped    uint32
			Entities   []struct {
				SchemaURL       string `json:"schema_url"`
				Type            string
				IDKeys          []string `json:"id_keys"`
				DescriptionKeys []string `json:"description_keys"`
			}
		}
		ResourceSchemaURL string `json:"resource_schema_url"`
		Scope             *struct {
			Name, Version string
			Attributes    []jsonPair
			Dropped       uint32
		}
		ScopeSchemaURL string `json:"scope_schema_url"`
		Unknown        []jsonField
	}
	Records []struct {
		Time         uint64
		ObservedTime uint64 `json:"observed_time"`
		Severity     int32
		SeverityText string `json:"severity_text"`
		Body         jsonValue
		Attributes   []jsonPair
		Dropped      uint32
		Flags        uint32
		TraceID      hexBytes `json:"trace_id"`
		SpanID       hexBytes `json:"span_id"`
		EventName    string   `json:"event_name"`
		Unknown      []jsonField
	}
	CRC uint32
	Hex hexBytes
}

func (j *jsonPayload) group() (g Group) {
	if r := j.Group.Resource; r != nil {
		g.Resource = &Resource{Attributes: attrs(r.Attributes), DroppedAttributes: r.Dropped}
		for _, e := range r.Entities {
			g.Resource.Entities = append(g.Resource.Entities, EntityRef(e))
		}
	}
	if s := j.Group.Scope; s != nil {
		g.Scope = &Scope{s.Name, s.Version, attrs(s.Attributes), s.Dropped}
	}
	g.ResourceSchemaURL, g.ScopeSchemaURL = j.Group.ResourceSchemaURL, j.Group.ScopeSchemaURL
	g.Unknown = unknown(j.Group.Unknown)
	return g
}

func (j *jsonPayload) records() (records []Record) {
	for _, r := range j.Records {
		records = append(records, Record{
			Time: r.Time, ObservedTime: r.ObservedTime, Severity: Severity(r.Severity), SeverityText: r.SeverityText,
			Body: r.Body.Value, Attributes: attrs(r.Attributes), DroppedAttributes: r.Dropped, Flags: r.Flags,
			TraceID: r.TraceID, SpanID: r.SpanID, EventName: r.EventName, Unknown: unknown(r.Unknown),
		})
	}
	return records
}

type jsonPayloads struct {
	Payloads []jsonPayload
	Invalid  []struct {
		Name, Why string
		Count     uint32
		Code      Code
		Record    *int
		Hex       hexBytes
	}
}

func TestPayloadsOfTheVectors(t *testing.T) {
	var all jsonPayloads
	vectors(t, "payloads.json", &all)
	for _, p := range all.Payloads {
		b, err := EncodePayload(p.group(), p.records()...)
		if err != nil || !bytes.Equal(b, p.Hex) || wire.CRC(b) != p.CRC {
			t.Errorf("%s: %v\n%x\n%x", p.Name, err, b, p.Hex)
		}
		group, records, err := DecodePayload(p.Hex, uint32(len(p.Records)))
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
			continue
		}
		if got, want := fmt.Sprintf("%+v", records), fmt.Sprintf("%+v", p.records()); got != want {
			t.Errorf("%s:\n%s\n%s", p.Name, got, want)
		}
		if again, err := EncodePayload(group, records...); err != nil || !bytes.Equal(again, p.Hex) {
			t.Errorf("%s: %v\n%x\n%x", p.Name, err, again, p.Hex)
		}
	}
	for _, p := range all.Invalid {
		_, _, err := DecodePayload(p.Hex, p.Count)
		if err == nil {
			t.Errorf("%s is read: %s", p.Name, p.Why)
		} else if p.Record != nil && !strings.HasPrefix(err.Error(), fmt.Sprintf("record %d: ", *p.Record)) {
			t.Errorf("%s: %v, but record %d is at fault", p.Name, err, *p.Record)
		}
	}
	if len(all.Payloads) == 0 || len(all.Invalid) == 0 {
		t.Fatal("no vectors")
	}
}

// parseFrame reads a whole frame, and answers its encoding by this package.
func parseFrame(b []byte) (again []byte, err error) {
	if len(b) < wire.HeaderBytes {
		return nil, wire.ErrTruncated
	}
	h, err := wire.ParseHeader(b[:wire.HeaderBytes])
	if err != nil {
		return nil, err
	}
	body := b[wire.HeaderBytes:]
	if h.Type == wire.TAppend && h.Len > wire.AppendHeadBytes+4<<20 {
		return nil, wire.ErrTooLong
	}
	if len(body) != int(h.Len) {
		return nil, wire.ErrTruncated
	}
	switch h.Type {
	case wire.THello:
		f, err := wire.ParseHello(body)
		return f.Put(nil), err
	case wire.TAppend:
		head, payload, err := wire.ParseAppend(body)
		return append(wire.PutAppend(nil, head, len(payload)), payload...), err
	case wire.TFlush:
		level, err := wire.ParseFlush(body)
		if h.RequestID == 0 {
			err = wire.ErrUnknown
		}
		return wire.PutFlush(nil, h.RequestID, level), err
	case wire.TRead:
		f, err := wire.ParseRead(h.RequestID, body)
		return f.Put(nil), err
	case wire.TWelcome:
		f, err := wire.ParseWelcome(body)
		if err != nil {
			return nil, err
		}
		return f.Put(nil), nil
	case wire.TAccepted:
		f, err := wire.ParseAccepted(body)
		return f.Put(nil), err
	case wire.TWatermark:
		f, err := wire.ParseWatermark(h.RequestID, body)
		return f.Put(nil), err
	case wire.TRefused:
		f, err := wire.ParseRefused(body)
		return f.Put(nil), err
	case wire.TError:
		f, err := wire.ParseError(body)
		if err != nil {
			return nil, err
		}
		return f.Put(nil, h.RequestID), nil
	case wire.TRecords:
		f, err := wire.ParseRecords(body)
		if err != nil {
			return nil, err
		}
		return f.Put(nil, h.RequestID), nil
	case wire.TGap:
		f, err := wire.ParseGap(body)
		return f.Put(nil, h.RequestID), err
	case wire.TCaughtUp:
		f, err := wire.ParseCaughtUp(body)
		return wire.PutCaughtUp(nil, h.RequestID, f), err
	case wire.TProgress:
		f, err := wire.ParseCaughtUp(body)
		return wire.PutProgress(nil, h.RequestID, f), err
	case wire.TReadEnd:
		f, reason, err := wire.ParseReadEnd(body)
		return wire.PutReadEnd(nil, h.RequestID, f, reason), err
	}
	r, err := wire.Control(body) // PING, PONG, CANCEL_READ, BYE
	if err != nil || len(r.Rest) > 0 {
		return nil, errors.Join(err, wire.ErrLeftOver)
	}
	return wire.PutControl(nil, h.Type, h.RequestID, nil), nil
}

func TestFramesOfTheVectors(t *testing.T) {
	var all struct {
		Frames []struct {
			Name, Type, From string
			UnknownFields    any `json:"unknown_fields"`
			Hex              hexBytes
		}
		Invalid []struct {
			Name, From, Why string
			Code            Code
			Hex             hexBytes
		}
	}
	vectors(t, "frames.json", &all)
	for _, f := range all.Frames {
		if strings.HasPrefix(f.Type, "RING") || strings.HasSuffix(f.Type, "CURSOR") {
			continue // of shared memory and of named cursors, which this client does not use
		}
		again, err := parseFrame(f.Hex)
		if err != nil || (!bytes.Equal(again, f.Hex) && f.UnknownFields == nil) {
			t.Errorf("%s: %v\n%x\n%x", f.Name, err, again, f.Hex)
		}
	}
	for _, f := range all.Invalid {
		_, err := parseFrame(f.Hex)
		if err == nil {
			t.Errorf("%s is read: %s", f.Name, f.Why)
		}
		if is := errors.Is(err, wire.ErrChecksum); is != (f.Code == CodeBadChecksum) {
			t.Errorf("%s: %v, not %v", f.Name, err, f.Code)
		}
		large := f.Code == CodeFrameTooLarge || f.Code == CodeAppendTooLarge
		if is := errors.Is(err, wire.ErrTooLong); is != large {
			t.Errorf("%s: %v, not %v", f.Name, err, f.Code)
		}
	}
	if len(all.Frames) == 0 || len(all.Invalid) == 0 {
		t.Fatal("no vectors")
	}
}
