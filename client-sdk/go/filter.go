package clad

import (
	"bytes"
	"errors"
	"math"
	"strings"

	"clad/internal/wire"
)

// Filter says which records a reader wants: those for which all that it states holds. The zero value wants every one.
//
// The daemon leaves out appends in which nothing matches, so little is sent where little matches. What comes is filtered
// here once more: a daemon that does not know filters gives the same records.
type Filter struct {
	// MinSeverity is the least one. A record without a severity is below all. 0 is no bound.
	MinSeverity Severity
	// Components: the record is of one of these. "billing*" is each that begins with billing.
	Components []string
	// Attributes of the record itself: it has each of them, equal in kind and value. Lists are not compared.
	Attributes []Attr
	// TraceID is that of the record. Empty: any.
	TraceID []byte
	// ProducerID is the producer that appended the record. Zero: any.
	ProducerID ProducerID
}

var errList = errors.New("clad: attributes are compared with simple values, not with lists or nothing")

// Kinds of conditions and comparisons (docs/PROTOCOL.md, section 6).
const (
	conditionSeverity  = 1
	conditionComponent = 2
	conditionAttribute = 3
	conditionTraceID   = 6
	conditionProducer  = 7
	conditionAny       = 8
	componentEqual     = 1
	componentBegins    = 2
)

// sieve is a filter that is ready.
type sieve struct {
	filter     Filter
	attributes [][]byte
	// encoded is as a READ has it; nil where it is beyond what one takes.
	encoded []byte
}

func newSieve(f Filter) (*sieve, error) {
	if f.MinSeverity == 0 && len(f.Components) == 0 && len(f.Attributes) == 0 && len(f.TraceID) == 0 && f.ProducerID == (ProducerID{}) {
		return nil, nil
	}
	s, e := &sieve{filter: f}, []byte{}
	count := len(f.Components) + len(f.Attributes) + 4
	if f.MinSeverity != 0 {
		content := le.AppendUint32(nil, uint32(f.MinSeverity))
		e = wire.PutField(e, conditionSeverity, le.AppendUint32(content, math.MaxInt32))
	}
	var components []byte
	for _, name := range f.Components {
		how := byte(componentEqual)
		if prefix, ok := strings.CutSuffix(name, "*"); ok {
			how, name = componentBegins, prefix
		}
		one := wire.PutField(nil, conditionComponent, append([]byte{how}, name...))
		if len(f.Components) == 1 {
			e = append(e, one...)
		} else {
			components = wire.PutBytes(components, one)
		}
	}
	if len(components) > 0 {
		e = wire.PutField(e, conditionAny, components)
	}
	for _, a := range f.Attributes {
		if k := a.Value.Kind(); k == KindArray || k == KindMap || k == KindAbsent {
			return nil, errList
		}
		pair := encodePair(a)
		if pair.err != nil {
			return nil, pair.err
		}
		s.attributes = append(s.attributes, pair.buf)
		e = wire.PutField(e, conditionAttribute, pair.buf)
	}
	if len(f.TraceID) > 0 {
		e = wire.PutField(e, conditionTraceID, f.TraceID)
	}
	if f.ProducerID != (ProducerID{}) {
		e = wire.PutField(e, conditionProducer, f.ProducerID[:])
	}
	if len(e) <= wire.FilterBytesMax && count <= wire.FilterConditionMax {
		s.encoded = e
	}
	return s, nil
}

// encodePair encodes a pair. A string index of the key is no part of what is compared.
func encodePair(a Attr) encoder {
	e := encoder{}
	e.pairs([]Attr{{Key: a.Key, Value: a.Value}}, 0)
	return e
}

func (s *sieve) matches(records *Records, record *Record) bool {
	f := &s.filter
	if f.MinSeverity != 0 && (record.Severity <= 0 || record.Severity < f.MinSeverity) ||
		len(f.TraceID) > 0 && !bytes.Equal(f.TraceID, record.TraceID) ||
		f.ProducerID != (ProducerID{}) && f.ProducerID != records.ProducerID {
		return false
	}
	if len(f.Components) > 0 {
		is, has := records.Group.componentName()
		for i := 0; ; i++ {
			if i == len(f.Components) || !has {
				return false
			}
			prefix, begins := strings.CutSuffix(f.Components[i], "*")
			if is == f.Components[i] && !begins || begins && strings.HasPrefix(is, prefix) {
				break
			}
		}
	}
	for _, wanted := range s.attributes {
		if !hasPair(record.Attributes, wanted) {
			return false
		}
	}
	return true
}

func hasPair(attributes []Attr, wanted []byte) bool {
	for _, a := range attributes {
		if bytes.Equal(encodePair(a).buf, wanted) {
			return true
		}
	}
	return false
}
