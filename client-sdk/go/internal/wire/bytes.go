// Package wire has the bytes of the framed protocol (docs/PROTOCOL.md, sections 1 and 2): numbers, tagged fields,
// frames. It does no I/O and knows no producer.
package wire

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"unicode/utf8"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC is the CRC-32C of some bytes.
func CRC(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

var le = binary.LittleEndian

// Errors of a decoder; the frame or record that has them is named by the caller.
var (
	ErrTruncated = errors.New("it ends too early")
	ErrNumber    = errors.New("a number is not in its shortest form, or too large")
	ErrNotUTF8   = errors.New("a text is not UTF-8")
	ErrFields    = errors.New("tagged fields are out of order, or there twice")
	ErrReserved  = errors.New("reserved bits are set")
	ErrLeftOver  = errors.New("bytes are left over")
	ErrChecksum  = errors.New("its checksum is wrong")
	ErrTooLong   = errors.New("it is longer than it may be")
	ErrUnknown   = errors.New("a number that means nothing")
)

// Reader reads from the front of some bytes. The first error stays, and everything read after it is zero.
type Reader struct {
	Rest []byte
	Err  error
}

// Fail notes an error, if it is the first.
func (r *Reader) Fail(err error) {
	if r.Err == nil {
		r.Err = err
	}
	r.Rest = nil
}

// Take takes n bytes; they are not copied.
func (r *Reader) Take(n int) []byte {
	if n < 0 || n > len(r.Rest) {
		r.Fail(ErrTruncated)
		return nil
	}
	head := r.Rest[:n:n]
	r.Rest = r.Rest[n:]
	return head
}

// U8 takes a byte.
func (r *Reader) U8() uint8 {
	if b := r.Take(1); b != nil {
		return b[0]
	}
	return 0
}

// U16 takes two bytes.
func (r *Reader) U16() uint16 {
	if b := r.Take(2); b != nil {
		return le.Uint16(b)
	}
	return 0
}

// U32 takes four bytes.
func (r *Reader) U32() uint32 {
	if b := r.Take(4); b != nil {
		return le.Uint32(b)
	}
	return 0
}

// U64 takes eight bytes.
func (r *Reader) U64() uint64 {
	if b := r.Take(8); b != nil {
		return le.Uint64(b)
	}
	return 0
}

// ID takes sixteen bytes.
func (r *Reader) ID() (id [16]byte) {
	copy(id[:], r.Take(16))
	return id
}

// Zeros takes n reserved bytes.
func (r *Reader) Zeros(n int) {
	for _, b := range r.Take(n) {
		if b != 0 {
			r.Fail(ErrReserved)
			return
		}
	}
}

// Uvarint takes a LEB128 number in its shortest form.
func (r *Reader) Uvarint() uint64 {
	value, n := binary.Uvarint(r.Rest)
	switch {
	case n == 0:
		r.Fail(ErrTruncated)
		return 0
	case n < 0 || (n > 1 && r.Rest[n-1] == 0):
		r.Fail(ErrNumber)
		return 0
	}
	r.Rest = r.Rest[n:]
	return value
}

// Varint takes a zigzag-mapped number.
func (r *Reader) Varint() int64 {
	u := r.Uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// Delimited takes a length and that many bytes.
func (r *Reader) Delimited() []byte {
	n := r.Uvarint()
	if n > uint64(len(r.Rest)) {
		r.Fail(ErrTruncated)
		return nil
	}
	return r.Take(int(n))
}

// Text takes a length and that many bytes of UTF-8.
func (r *Reader) Text() string {
	b := r.Delimited()
	if !utf8.Valid(b) {
		r.Fail(ErrNotUTF8)
		return ""
	}
	return string(b)
}

// Field takes a tagged field; the tag is 0 at the end and after an error.
func (r *Reader) Field() (tag uint8, content []byte) {
	if len(r.Rest) == 0 || r.Err != nil {
		return 0, nil
	}
	tag = r.U8()
	content = r.Delimited()
	if tag == 0 {
		r.Fail(ErrFields)
	}
	if r.Err != nil {
		return 0, nil
	}
	return tag, content
}

// PutUvarint appends a LEB128 number.
func PutUvarint(b []byte, value uint64) []byte { return binary.AppendUvarint(b, value) }

// PutVarint appends a zigzag-mapped number.
func PutVarint(b []byte, value int64) []byte {
	return binary.AppendUvarint(b, uint64(value)<<1^uint64(value>>63))
}

// PutText appends a length and a text.
func PutText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// PutBytes appends a length and bytes.
func PutBytes(b, content []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(content))), content...)
}

// PutField appends a tagged field.
func PutField(b []byte, tag uint8, content []byte) []byte { return PutBytes(append(b, tag), content) }

// Open leaves room for a length that Close writes; it answers where the room is.
func Open(b []byte) ([]byte, int) { return append(b, 0), len(b) }

// Close writes the length of everything behind the room at `at`. A length of more than a byte moves the content up.
func Close(b []byte, at int) []byte {
	n := len(b) - at - 1
	if n < 0x80 {
		b[at] = byte(n)
		return b
	}
	var length [binary.MaxVarintLen64]byte
	width := binary.PutUvarint(length[:], uint64(n))
	b = append(b, length[1:width]...) // as many bytes as are missing
	copy(b[at+width:], b[at+1:at+1+n])
	copy(b[at:], length[:width])
	return b
}
