package clad

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"clad/internal/wire"
)

func golden(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("../../proto/tests/golden/" + name + ".hex")
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGoldenPayloadsDecodeAndEncodeToTheSameBytes(t *testing.T) {
	for name, count := range map[string]uint32{"payload_full": 3, "payload_plain": 2} {
		want := golden(t, name)
		group, records, err := DecodePayload(want, count)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := EncodePayload(group, records...)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v\n%x\n%x", name, err, got, want)
		}
	}
}

// Every flipped byte and every cut of a good payload is refused, or decodes to something whose encoding is just that.
func TestADamagedPayloadIsRefusedOrIsItsOwnEncoding(t *testing.T) {
	good := golden(t, "payload_full")
	check := func(b []byte, count uint32) {
		group, records, err := DecodePayload(b, count)
		if err != nil {
			return
		}
		if again, err := EncodePayload(group, records...); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%v\n%x\n%x", err, again, b)
		}
	}
	for i := range good {
		check(good[:i], 3)
		for _, flip := range []byte{1, 2, 4, 8, 16, 32, 64, 128, 255} {
			b := bytes.Clone(good)
			b[i] ^= flip
			check(b, 3)
		}
	}
	for _, count := range []uint32{0, 1, 2, 4, 1 << 20, 1<<20 + 1} {
		if _, _, err := DecodePayload(good, count); err == nil {
			t.Errorf("%d records", count)
		}
	}
}

func FuzzDecodePayload(f *testing.F) {
	for _, name := range []string{"payload_full", "payload_plain"} {
		text, err := os.ReadFile("../../proto/tests/golden/" + name + ".hex")
		if err != nil {
			f.Fatal(err)
		}
		b, _ := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
		f.Add(b, uint32(3))
	}
	f.Fuzz(func(t *testing.T, b []byte, count uint32) {
		group, records, err := DecodePayload(b, count)
		if err != nil {
			return
		}
		if again, err := EncodePayload(group, records...); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%v\n%x\n%x", err, again, b)
		}
	})
}

func TestNestingHasABound(t *testing.T) {
	nested := func(depth int) Record {
		v := Int(1)
		for range depth {
			v = Array(v)
		}
		return Record{Body: v, Attributes: []Attr{KV("a", v)}}
	}
	b, err := EncodePayload(Group{}, nested(wire.NestingMax))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := DecodePayload(b, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := EncodePayload(Group{}, nested(wire.NestingMax+1)); err == nil {
		t.Fatal("31 deep is encoded")
	}
}

func TestAddressesAndCursors(t *testing.T) {
	for text, want := range map[string]string{
		"unix:///run/clad.sock": "unix /run/clad.sock", "tcp://host": "tcp host:7440", "tcp://h:1": "tcp h:1",
		"tcp://[::1]": "tcp [::1]:7440", "tcp://[::1]:2": "tcp [::1]:2", "tcp+tls://logs.example": "tcp logs.example:7440",
		"tcp+tls://[::1]:9?server_name=a&ca=/x/ca.pem": "tcp [::1]:9",
	} {
		a, err := parseAddress(text)
		if err != nil || a.network+" "+a.target != want {
			t.Errorf("%s: %v %v", text, a, err)
		}
	}
	t.Setenv("CLAD_SERVER", "tcp://h:3")
	if a, err := parseAddress(""); err != nil || a.text != "tcp://h:3" || a.target != "h:3" {
		t.Errorf("the host's daemon: %v %v", a, err)
	}
	for _, text := range []string{"/run/clad.sock", "unix://", "grpc://h:1", "tcp://"} {
		if _, err := parseAddress(text); err == nil {
			t.Errorf("%q is an address", text)
		}
	}
	c := Cursor{LogID{0xA1, 2}, 7, 1 << 63}
	again, err := ParseCursor(c.String())
	if err != nil || again != c {
		t.Errorf("%v %v", again, err)
	}
	for _, text := range []string{"", "a:1:2", c.String() + "1", c.String() + ":", strings.Repeat("g", 32) + ":1:2"} {
		if _, err := ParseCursor(text); err == nil {
			t.Errorf("%q is a cursor", text)
		}
	}
}
