package clad

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"clad/internal/wire"
)

func TestAFilterIsEncodedAsTheVectorsHaveIt(t *testing.T) {
	f := Filter{
		MinSeverity: 13, Components: []string{"billing*"}, Attributes: []Attr{KV("user.id", 42)},
		TraceID: bytes.Repeat([]byte{0xAB}, 16), ProducerID: ProducerID(bytes.Repeat([]byte{0xB2}, 16)),
	}
	s, err := newSieve(f)
	if err != nil {
		t.Fatal(err)
	}
	// That of the vectors goes on with conditions that Go does not have.
	if whole := hex.EncodeToString(golden(t, "frame_read_filter")); !bytes.Contains([]byte(whole), []byte(hex.EncodeToString(s.encoded))) {
		t.Errorf("%x is not in %s", s.encoded, whole)
	}
	if s, err := newSieve(Filter{}); s != nil || err != nil {
		t.Errorf("%v %v", s, err)
	}
	for _, list := range []any{Array(), Map(), nil} {
		if _, err := newSieve(Filter{Attributes: []Attr{KV("a", list)}}); !errors.Is(err, errList) {
			t.Errorf("%v: %v", list, err)
		}
	}
	long := Filter{Components: []string{string(make([]byte, 4000))}}
	if s, err := newSieve(long); err != nil || s.encoded != nil {
		t.Errorf("%v", err)
	}
}

func TestWhatDoesNotMatchIsDroppedHereToo(t *testing.T) {
	f := newFake(t)
	opts := quickReader(true, From{})
	opts.Filter, opts.Limit = Filter{MinSeverity: 17}, 3
	r, c := openFake(t, f, opts)
	q := c.read()
	if !bytes.Equal(q.Filter, []byte{1, 8, 17, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0x7F}) || q.Limit != 0 {
		t.Fatalf("%+v", q)
	}
	loud := func(i int) Severity { return Severity(9 + 8*(i%2)) }
	send := func(first uint64, bodies ...string) {
		var records []Record
		for i, body := range bodies {
			records = append(records, Record{Severity: loud(i), Body: String(body)})
		}
		payload := must(EncodePayload(Group{}, records...))
		c.send((&wire.Records{
			Epoch: 4, Count: uint32(len(records)), FirstOffset: first, FirstSeq: first, Take: uint32(len(records)),
			PayloadCRC: wire.CRC(payload), Payload: payload,
		}).Put(nil, q.RequestID))
	}
	send(0, "a", "b", "c", "d", "e")
	e := next[*Records](t, r)
	if len(e.Records) != 2 || e.Records[0].Offset != 1 || e.Records[1].Offset != 3 {
		t.Fatalf("%+v", e)
	}
	if at, _ := r.Cursor(); at.Offset != 5 {
		t.Errorf("%v", at)
	}
	c.send(wire.PutProgress(nil, q.RequestID, wire.Cursor{LogID: logA, Epoch: 4, Offset: 70}))
	if p := next[Progress](t, r); p.Cursor.Offset != 70 {
		t.Errorf("%+v", p)
	}
	long := string(bytes.Repeat([]byte("x"), 600<<10))
	sent := make(chan struct{})
	go func() { // more than a socket holds
		defer close(sent)
		send(70, long)
		send(71, long)
	}()
	if p := next[Progress](t, r); p.Cursor.Offset != 72 {
		t.Errorf("%+v", p)
	}
	<-sent
	c.send((&wire.Error{Code: uint16(CodeFilterUnsupported)}).Put(nil, q.RequestID))
	got := make(chan Event)
	go func() { got <- must(r.Next(within(t))) }()
	c = f.accept()
	c.welcome()
	if q = c.read(); q.Filter != nil || q.Cursor.Offset != 72 {
		t.Fatalf("%+v", q)
	}
	send(72, "f", "g", "h", "i")
	if e := (<-got).(*Records); len(e.Records) != 1 || e.Records[0].Offset != 73 {
		t.Fatalf("%+v", e)
	}
	if _, err := r.Next(within(t)); err != io.EOF {
		t.Errorf("%v", err)
	}
	if at, _ := r.Cursor(); at.Offset != 74 {
		t.Errorf("%v", at)
	}
}

// Each filter gives what a look at every record gives.
func TestADaemonFilters(t *testing.T) {
	d := newDaemon(t).start()
	ctx := context.Background()
	var all []*Records
	trace := bytes.Repeat([]byte{7}, 16)
	for _, component := range []string{"billing", "billing-api", "shop"} {
		p := must(Dial(d.unix(), Options{Component: component}))
		for i := range 60 {
			record := Record{Time: 1, Severity: Severity(i % 25), Body: String(fmt.Sprint(component, i))}
			if i%3 == 0 {
				record.Attributes = []Attr{KV("user", int64(i%4)), KV("user", fmt.Sprint(i%4)), KV("ok", i%2 == 0), KV("ratio", 0.5)}
			}
			if i%5 == 0 {
				record.TraceID = trace
			}
			if _, err := p.Send(ctx, record, Durable); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	all = readAll(t, d.unix(), ReaderOptions{})
	producer := all[70].ProducerID
	for name, f := range map[string]Filter{
		"severity": {MinSeverity: 17}, "component": {Components: []string{"billing"}},
		"prefix": {Components: []string{"bill*"}}, "several": {Components: []string{"shop", "billing-*"}},
		"int": {Attributes: []Attr{KV("user", int64(2))}}, "text": {Attributes: []Attr{KV("user", "2")}},
		"two":  {Attributes: []Attr{KV("user", int64(0)), KV("ok", true), KV("ratio", 0.5)}},
		"none": {Attributes: []Attr{KV("ratio", 0.25)}}, "trace": {TraceID: trace}, "producer": {ProducerID: producer},
		"all": {MinSeverity: 5, Components: []string{"shop"}, TraceID: trace, Attributes: []Attr{KV("ok", true)}},
	} {
		var wanted []string
		for _, records := range all {
			for _, stored := range records.Records {
				r := &stored.Record
				has := func(a Attr) bool {
					return slices.ContainsFunc(r.Attributes, func(b Attr) bool { return fmt.Sprintf("%#v", a) == fmt.Sprintf("%#v", b) })
				}
				is := func(name string) bool {
					return records.Group.Component() == name ||
						name == "bill*" && records.Group.Component() != "shop" ||
						name == "billing-*" && records.Group.Component() == "billing-api"
				}
				if r.Severity >= max(f.MinSeverity, 0) && (len(f.Components) == 0 || slices.ContainsFunc(f.Components, is)) &&
					!slices.ContainsFunc(f.Attributes, func(a Attr) bool { return !has(a) }) &&
					(f.TraceID == nil || bytes.Equal(f.TraceID, r.TraceID)) &&
					(f.ProducerID == (ProducerID{}) || f.ProducerID == records.ProducerID) {
					wanted = append(wanted, r.Body.Text())
				}
			}
		}
		if got := bodies(readAll(t, d.unix(), ReaderOptions{Filter: f})); !slices.Equal(got, wanted) || (len(got) == 0) != (name == "none") {
			t.Errorf("%s: %d, not %d: %v", name, len(got), len(wanted), got)
		}
	}
}

// A cursor in its text form outlives the daemon, and a follower with a filter goes on behind what it was not sent.
func TestACursorSurvives(t *testing.T) {
	d := newDaemon(t).start()
	ctx := context.Background()
	send := func(from, to int) {
		p := must(Dial(d.unix(), Options{Component: "a"}))
		for i := from; i < to; i++ {
			if _, err := p.Send(ctx, Text(Severity(9+8*(i%10/9)), fmt.Sprint(i)), Durable); err != nil {
				t.Fatal(err)
			}
		}
		p.Close(ctx)
	}
	send(0, 25)
	r := must(OpenReader(ctx, d.unix(), ReaderOptions{Follow: true, Filter: Filter{MinSeverity: 17}}))
	defer r.Close()
	var got []string
	for len(got) < 2 {
		if records, ok := must(r.Next(within(t))).(*Records); ok {
			got = append(got, records.Records[0].Record.Body.Text())
		}
	}
	for at, _ := r.Cursor(); at.Offset < 25; at, _ = r.Cursor() {
		must(r.Next(within(t)))
	}
	at, _ := r.Cursor()
	text := at.String()
	d.kill()
	d.start()
	send(25, 30)
	for len(got) < 3 {
		if records, ok := must(r.Next(within(t))).(*Records); ok {
			got = append(got, records.Records[0].Record.Body.Text())
		}
	}
	if !slices.Equal(got, []string{"9", "19", "29"}) {
		t.Errorf("%v", got)
	}
	stored := readAll(t, d.unix(), ReaderOptions{From: FromCursor(must(ParseCursor(text)))})
	if got := bodies(stored); !slices.Equal(got, []string{"25", "26", "27", "28", "29"}) {
		t.Errorf("%v", got)
	}
	other := newDaemon(t).start()
	r = must(OpenReader(ctx, other.unix(), ReaderOptions{From: FromCursor(at)}))
	defer r.Close()
	_, err := r.Next(within(t))
	var unknown *CursorUnknownError
	if !errors.As(err, &unknown) {
		t.Errorf("%v", err)
	}
}
