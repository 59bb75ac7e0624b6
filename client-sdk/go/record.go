package clad

import (
	"math"
	"time"
)

// Record is one log record of OpenTelemetry's Logs Data Model. The zero value is a record without anything.
type Record struct {
	// Time is when it happened, ObservedTime when it was seen: Unix nanoseconds ([Nanos]), 0 unknown.
	Time, ObservedTime uint64
	Severity           Severity
	// SeverityText is the source's word for the severity.
	SeverityText string
	Body         Value
	Attributes   []Attr
	// DroppedAttributes is the number of attributes that were dropped before.
	DroppedAttributes uint32
	// Flags: the low 8 bits are the W3C trace flags.
	Flags uint32
	// TraceID normally has 16 bytes, SpanID 8.
	TraceID, SpanID []byte
	EventName       string
	// Unknown has fields of a later version, as they came.
	Unknown []Field
}

// Text makes a record of a text, as of now.
func Text(severity Severity, text string) Record {
	return Record{Time: Nanos(time.Now()), Severity: severity, Body: String(text)}
}

// Field is a field under a tag that this version does not know.
type Field struct {
	Tag     uint8
	Content []byte
}

// Kind is what a [Value] holds. Numbers are those of the encoding.
type Kind uint8

// Kinds of values.
const (
	// KindAbsent: there is no value.
	KindAbsent Kind = 0
	// KindEmpty: there is one that holds nothing.
	KindEmpty  Kind = 1
	KindString Kind = 2
	KindBytes  Kind = 3
	KindBool   Kind = 4
	KindInt    Kind = 6
	KindDouble Kind = 7
	KindArray  Kind = 8
	KindMap    Kind = 9
	// KindStringIndex is a place in a string table of OTLP.
	KindStringIndex Kind = 10
)

const (
	codeTrue     = 5
	codeKeyIndex = 11
)

// Value is the value of a body or an attribute. The zero value is absent.
type Value struct {
	kind  Kind
	num   uint64
	text  string
	bytes []byte
	array []Value
	pairs []Attr
}

// Attr is a key and its value. Order and duplicate keys are kept.
type Attr struct {
	Key   string
	Value Value
	// KeyIndex is the key's place in a string table of OTLP; 0 is none.
	KeyIndex int32
}

// Empty is a value that holds nothing.
func Empty() Value { return Value{kind: KindEmpty} }

// String is a text. It must be UTF-8.
func String(text string) Value { return Value{kind: KindString, text: text} }

// Bytes is bytes; they are not copied.
func Bytes(b []byte) Value { return Value{kind: KindBytes, bytes: b} }

// Bool is a truth value.
func Bool(b bool) Value {
	if b {
		return Value{kind: KindBool, num: 1}
	}
	return Value{kind: KindBool}
}

// Int is a signed number.
func Int(n int64) Value { return Value{kind: KindInt, num: uint64(n)} }

// Double is a floating-point number; its bits are kept.
func Double(f float64) Value { return Value{kind: KindDouble, num: math.Float64bits(f)} }

// Array is values in order.
func Array(values ...Value) Value { return Value{kind: KindArray, array: values} }

// Map is pairs in order.
func Map(pairs ...Attr) Value { return Value{kind: KindMap, pairs: pairs} }

// StringIndex is a place in a string table of OTLP.
func StringIndex(n int32) Value { return Value{kind: KindStringIndex, num: uint64(int64(n))} }

// KV makes an attribute of a text, a number, a truth value, bytes or a [Value]. Anything else is [KindAbsent].
func KV(key string, value any) Attr {
	switch v := value.(type) {
	case Value:
		return Attr{Key: key, Value: v}
	case string:
		return Attr{Key: key, Value: String(v)}
	case bool:
		return Attr{Key: key, Value: Bool(v)}
	case int:
		return Attr{Key: key, Value: Int(int64(v))}
	case int64:
		return Attr{Key: key, Value: Int(v)}
	case float64:
		return Attr{Key: key, Value: Double(v)}
	case []byte:
		return Attr{Key: key, Value: Bytes(v)}
	}
	return Attr{Key: key}
}

// Kind answers what it holds.
func (v Value) Kind() Kind { return v.kind }

// Text answers the text of a [KindString], else "".
func (v Value) Text() string { return v.text }

// Bytes answers the bytes of a [KindBytes], else nil.
func (v Value) Bytes() []byte { return v.bytes }

// Bool answers the truth value of a [KindBool], else false.
func (v Value) Bool() bool { return v.kind == KindBool && v.num == 1 }

// Int answers the number of a [KindInt] or [KindStringIndex], else 0.
func (v Value) Int() int64 {
	if v.kind == KindInt || v.kind == KindStringIndex {
		return int64(v.num)
	}
	return 0
}

// Double answers the number of a [KindDouble], else 0.
func (v Value) Double() float64 {
	if v.kind == KindDouble {
		return math.Float64frombits(v.num)
	}
	return 0
}

// Array answers the values of a [KindArray], else nil.
func (v Value) Array() []Value { return v.array }

// Map answers the pairs of a [KindMap], else nil.
func (v Value) Map() []Attr { return v.pairs }

// Group is what all records of an append share.
type Group struct {
	// Resource may be nil: then there is none.
	Resource          *Resource
	ResourceSchemaURL string
	// Scope may be nil: then there is none.
	Scope          *Scope
	ScopeSchemaURL string
	Unknown        []Field
}

// Resource is what the records are about.
type Resource struct {
	Attributes        []Attr
	DroppedAttributes uint32
	Entities          []EntityRef
}

// EntityRef names attributes of a resource that identify or describe a thing.
type EntityRef struct {
	SchemaURL, Type         string
	IDKeys, DescriptionKeys []string
}

// Scope is the part of a program that made the records.
type Scope struct {
	Name, Version     string
	Attributes        []Attr
	DroppedAttributes uint32
}

// ComponentGroup is a group whose resource names a component (`service.name`).
func ComponentGroup(name string, more ...Attr) Group {
	attrs := append([]Attr{KV("service.name", name)}, more...)
	return Group{Resource: &Resource{Attributes: attrs}}
}

// Component is the program that the records are from: the first text under `service.name`, or "".
func (g *Group) Component() string {
	name, _ := g.componentName()
	return name
}

// componentName also says whether there is one.
func (g *Group) componentName() (string, bool) {
	if g.Resource != nil {
		for _, a := range g.Resource.Attributes {
			if a.Key == "service.name" && a.Value.kind == KindString {
				return a.Value.text, true
			}
		}
	}
	return "", false
}
