package wire

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// Type is the type of a frame.
type Type uint8

// Types of frames.
const (
	THello      Type = 0x01
	TAppend     Type = 0x02
	TFlush      Type = 0x03
	TPing       Type = 0x04
	TRead       Type = 0x05
	TCancelRead Type = 0x06
	TBye        Type = 0x07
	TWelcome    Type = 0x41
	TAccepted   Type = 0x42
	TWatermark  Type = 0x43
	TRefused    Type = 0x44
	TError      Type = 0x45
	TPong       Type = 0x46
	TRecords    Type = 0x47
	TGap        Type = 0x48
	TCaughtUp   Type = 0x49
	TReadEnd    Type = 0x4A
	TProgress   Type = 0x4C
)

// Bounds of the protocol.
const (
	HeaderBytes        = 16
	AppendHeadBytes    = 24
	ControlBytesMax    = 4096
	PayloadBytesMax    = 256 << 20
	RecordBytesMax     = 64 << 20
	GroupBytesMax      = 1 << 20
	AppendRecordsMax   = 1 << 20
	RecordHeadBytes    = 32
	WindowMax          = 65536
	NameBytesMax       = 128
	SecretBytesMax     = 32
	NestingMax         = 30
	recordsFixedBytes  = 68
	peerMetaBytesMax   = 1024
	peerMetaBytesTag   = 32 // the first with bytes
	earlierEpochsMax   = 32
	errorTextBytesMax  = 1024
	recordsOverheadMax = recordsFixedBytes + peerMetaBytesMax + 4
	magic              = 0xC1
	VersionMin         = 1
	Version            = 2
	AppendPrefixBytes  = HeaderBytes + AppendHeadBytes
	DefaultRecordBytes = 2 << 20
	DefaultAppendBytes = 4 << 20
	IntentAppend       = 1
	IntentRead         = 2
	FlagRetryable      = 1
	FlagMaybeWritten   = 2
	FlagGapMark        = 1
	FlagStoredBefore   = 1
	ReadFollow         = 1
	ReadSince          = 2
	ReadUntil          = 4
	StartOffset        = 1
	StartCursor        = 2
	StartTail          = 3
	welcomeSecretTag   = 1
	welcomeLastTag     = 2
	welcomeEarlierTag  = 3
	readFilterTag      = 1
	FilterBytesMax     = 3840
	FilterConditionMax = 64
)

// Header is the header of a frame.
type Header struct {
	Type      Type
	Len       uint32
	RequestID uint32
}

// PutHeader appends the header of a frame.
func PutHeader(b []byte, h Header) []byte {
	at := len(b)
	b = append(b, magic, byte(h.Type), 0, 0)
	b = le.AppendUint32(b, h.Len)
	b = le.AppendUint32(b, h.RequestID)
	return le.AppendUint32(b, CRC(b[at:]))
}

// ParseHeader checks the sixteen bytes of a header: magic, checksum, type, and the length against its limit.
func ParseHeader(b []byte) (Header, error) {
	r := Reader{Rest: b}
	m, t := r.U8(), Type(r.U8())
	reserved, n, id, crc := r.U16(), r.U32(), r.U32(), r.U32()
	switch {
	case r.Err != nil:
		return Header{}, r.Err
	case m != magic:
		return Header{}, errors.New("not a frame: the magic is wrong")
	case crc != CRC(b[:12]):
		return Header{}, fmt.Errorf("a frame header: %w", ErrChecksum)
	case reserved != 0 && t != THello && t != TError:
		return Header{}, fmt.Errorf("a header of %v: %w", t, ErrReserved)
	}
	limit := uint32(ControlBytesMax)
	switch t {
	case TAppend:
		limit = AppendHeadBytes + PayloadBytesMax
	case TRecords:
		limit = recordsOverheadMax + PayloadBytesMax
	case THello, TFlush, TPing, TRead, TCancelRead, TBye, 0x08, TWelcome, TAccepted, TWatermark, TRefused, TError, TPong,
		TGap, TCaughtUp, TReadEnd, 0x4B, TProgress:
	default:
		return Header{}, fmt.Errorf("a frame of the unknown type %#x", uint8(t))
	}
	if n > limit {
		return Header{}, fmt.Errorf("a frame of type %#x with %d bytes, %d are allowed: %w", uint8(t), n, limit, ErrTooLong)
	}
	return Header{Type: t, Len: n, RequestID: id}, nil
}

// PutControl appends a control frame with this body, without its checksum.
func PutControl(b []byte, t Type, requestID uint32, body []byte) []byte {
	b = PutHeader(b, Header{Type: t, Len: uint32(len(body) + 4), RequestID: requestID})
	b = append(b, body...)
	return le.AppendUint32(b, CRC(body))
}

// Control checks a control body and answers a reader of its fields.
func Control(body []byte) (Reader, error) {
	if len(body) < 4 {
		return Reader{}, ErrTruncated
	}
	fields := body[:len(body)-4]
	if le.Uint32(body[len(fields):]) != CRC(fields) {
		return Reader{}, ErrChecksum
	}
	return Reader{Rest: fields}, nil
}

// tagged calls for each tagged field, in ascending order.
func tagged(r *Reader, each func(tag uint8, content []byte)) error {
	last := uint8(0)
	for {
		tag, content := r.Field()
		if tag == 0 {
			return r.Err
		}
		if tag <= last {
			r.Fail(ErrFields)
			return r.Err
		}
		last = tag
		each(tag, content)
	}
}

// Hello opens a connection.
type Hello struct {
	MinVersion, MaxVersion uint16
	ProducerID             [16]byte
	ProducerEpoch          uint32
	Intent                 uint8
	Name                   string
	Secret                 []byte
}

// Put appends the frame.
func (h Hello) Put(b []byte) []byte {
	body := le.AppendUint16(nil, h.MinVersion)
	body = le.AppendUint16(body, h.MaxVersion)
	body = append(body, h.ProducerID[:]...)
	body = le.AppendUint32(body, h.ProducerEpoch)
	body = append(body, h.Intent, 0, 0, 0)
	if name := Cut(h.Name, NameBytesMax); name != "" {
		body = PutText(append(body, 1), name)
	}
	if len(h.Secret) > 0 {
		body = PutField(body, 2, h.Secret)
	}
	return PutControl(b, THello, 0, body)
}

// Cut answers as much of a text as fits, whole letters only.
func Cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}

// EpochStart is an epoch and the first offset that was given in it.
type EpochStart struct {
	Epoch uint32
	First uint64
}

// Welcome answers HELLO.
type Welcome struct {
	Version              uint16
	Policy, Highest      uint8
	MayRead              bool
	LogID                [16]byte
	Epoch, Window        uint32
	EpochFirst           uint64
	ProducerID           [16]byte
	ProducerEpoch        uint32
	MaxAppend, MaxRecord uint32
	Received             uint64
	Written              uint64
	Durable              uint64
	Secret               []byte
	HasLast              bool
	LastSeq, LastOffset  uint64
	LastLevel            uint8
	Earlier              []EpochStart
}

// Expected is the sequence that the daemon expects next of the producer.
func (w *Welcome) Expected() uint64 {
	if !w.HasLast {
		return 0
	}
	return max(w.LastSeq, w.LastSeq+1) // the last number has no next
}

// AbandonedSince answers from which offset on everything that an epoch gave is abandoned; false if nothing is.
func (w *Welcome) AbandonedSince(epoch uint32) (uint64, bool) {
	if epoch >= w.Epoch {
		return 0, false
	}
	from := w.EpochFirst
	for _, e := range w.Earlier {
		if e.Epoch > epoch && e.First < from {
			from = e.First
		}
	}
	return from, true
}

// ParseWelcome reads a body.
func ParseWelcome(body []byte) (*Welcome, error) {
	r, err := Control(body)
	if err != nil {
		return nil, err
	}
	w := &Welcome{Version: r.U16(), Policy: r.U8(), Highest: r.U8()}
	flags := r.U8()
	w.MayRead = flags&1 != 0
	if flags&^1 != 0 {
		r.Fail(ErrReserved)
	}
	r.Zeros(3)
	w.LogID, w.Epoch, w.Window, w.EpochFirst = r.ID(), r.U32(), r.U32(), r.U64()
	w.ProducerID, w.ProducerEpoch, w.MaxAppend, w.MaxRecord = r.ID(), r.U32(), r.U32(), r.U32()
	r.Zeros(4)
	w.Received, w.Written, w.Durable = r.U64(), r.U64(), r.U64()
	err = tagged(&r, func(tag uint8, content []byte) {
		f := Reader{Rest: content}
		switch tag {
		case welcomeSecretTag:
			w.Secret = append([]byte(nil), f.Take(len(content))...)
			if len(content) > SecretBytesMax {
				f.Fail(ErrNumber)
			}
		case welcomeLastTag:
			w.HasLast, w.LastSeq, w.LastOffset, w.LastLevel = true, f.U64(), f.U64(), f.U8()
			if w.LastLevel > 4 {
				f.Fail(ErrUnknown)
			}
		case welcomeEarlierTag:
			for len(f.Rest) > 0 && f.Err == nil {
				w.Earlier = append(w.Earlier, EpochStart{Epoch: f.U32(), First: f.U64()})
			}
			if len(w.Earlier) > earlierEpochsMax {
				f.Fail(ErrNumber)
			}
		default:
			f.Rest = nil
		}
		if len(f.Rest) > 0 {
			f.Fail(ErrLeftOver)
		}
		if f.Err != nil {
			r.Fail(f.Err)
		}
	})
	if err == nil && (w.Window == 0 || w.Window > WindowMax || w.Policy == 0 || w.Policy > 4 || w.Highest > 4) {
		err = ErrUnknown
	}
	return w, err
}

// AppendHead is what stands before the payload of an APPEND.
type AppendHead struct {
	FirstSeq   uint64
	Count      uint32
	Level      uint8
	Gap        bool
	PayloadCRC uint32
}

// PutAppend appends everything of an APPEND that stands before a payload of n bytes.
func PutAppend(b []byte, h AppendHead, n int) []byte {
	b = PutHeader(b, Header{Type: TAppend, Len: uint32(AppendHeadBytes + n)})
	at := len(b)
	b = le.AppendUint64(b, h.FirstSeq)
	b = le.AppendUint32(b, h.Count)
	flags := byte(0)
	if h.Gap {
		flags = FlagGapMark
	}
	b = append(b, h.Level, flags, 0, 0)
	b = le.AppendUint32(b, h.PayloadCRC)
	return le.AppendUint32(b, CRC(b[at:]))
}

// Accepted says that an append has its offsets.
type Accepted struct {
	FirstSeq, FirstOffset uint64
	Count, Epoch          uint32
	StoredBefore          bool
}

// ParseAccepted reads a body.
func ParseAccepted(body []byte) (a Accepted, err error) {
	r, err := Control(body)
	if err != nil {
		return a, err
	}
	a = Accepted{FirstSeq: r.U64(), FirstOffset: r.U64(), Count: r.U32(), Epoch: r.U32()}
	flags := r.U8()
	a.StoredBefore = flags&FlagStoredBefore != 0
	if flags&^FlagStoredBefore != 0 {
		r.Fail(ErrReserved)
	}
	r.Zeros(3)
	return a, tagged(&r, func(uint8, []byte) {})
}

// Watermark says that all offsets below one have a level.
type Watermark struct {
	RequestID          uint32
	Offset, EpochFirst uint64
	Epoch              uint32
	Level              uint8
}

// ParseWatermark reads a body.
func ParseWatermark(id uint32, body []byte) (w Watermark, err error) {
	r, err := Control(body)
	if err != nil {
		return w, err
	}
	w = Watermark{RequestID: id, Offset: r.U64(), EpochFirst: r.U64(), Epoch: r.U32(), Level: r.U8()}
	r.Zeros(3)
	if r.Err == nil && (w.Level < 2 || w.Level > 4) {
		r.Fail(ErrUnknown)
	}
	return w, tagged(&r, func(uint8, []byte) {})
}

// Cursor is a place in a log.
type Cursor struct {
	LogID  [16]byte
	Epoch  uint32
	Offset uint64
}

func (r *Reader) cursor() Cursor { return Cursor{LogID: r.ID(), Epoch: r.U32(), Offset: r.U64()} }

// Put appends the cursor.
func (c Cursor) Put(b []byte) []byte {
	b = append(b, c.LogID[:]...)
	b = le.AppendUint32(b, c.Epoch)
	return le.AppendUint64(b, c.Offset)
}

// Error is an error of the daemon. A pointer that is nil: the field is not there.
type Error struct {
	Code        uint16
	Flags       uint8
	Text        string
	Expected    *uint64
	RecordIndex *uint32
	Limit       *uint64
	Parting     *Cursor
	RetryMillis *uint32
}

func parseError(r *Reader) (*Error, error) {
	e := &Error{Code: r.U16(), Flags: r.U8()}
	r.U8()
	err := tagged(r, func(tag uint8, content []byte) {
		f := Reader{Rest: content}
		switch tag {
		case 1:
			if len(content) > errorTextBytesMax || !utf8.Valid(content) {
				f.Fail(ErrNotUTF8)
			}
			e.Text = string(f.Take(len(content)))
		case 2:
			v := f.U64()
			e.Expected = &v
		case 3:
			v := f.U32()
			e.RecordIndex = &v
		case 4:
			v := f.U64()
			e.Limit = &v
		case 5:
			v := f.cursor()
			e.Parting = &v
		case 6:
			v := f.U32()
			e.RetryMillis = &v
		default:
			f.Rest = nil
		}
		if len(f.Rest) > 0 {
			f.Fail(ErrLeftOver)
		}
		if f.Err != nil {
			r.Fail(f.Err)
		}
	})
	return e, err
}

// ParseError reads the body of an ERROR.
func ParseError(body []byte) (*Error, error) {
	r, err := Control(body)
	if err != nil {
		return nil, err
	}
	return parseError(&r)
}

// Refused says that an append is not taken, or not kept.
type Refused struct {
	FirstSeq uint64
	Count    uint32
	Error    *Error
}

// ParseRefused reads a body.
func ParseRefused(body []byte) (f Refused, err error) {
	r, err := Control(body)
	if err != nil {
		return f, err
	}
	f = Refused{FirstSeq: r.U64(), Count: r.U32()}
	f.Error, err = parseError(&r)
	return f, err
}

// PutFlush appends a FLUSH.
func PutFlush(b []byte, id uint32, level uint8) []byte {
	return PutControl(b, TFlush, id, []byte{level, 0, 0, 0})
}

// Read opens a read.
type Read struct {
	RequestID    uint32
	Start        uint8
	Flags        uint8
	MinLevel     uint8
	Limit        uint64
	Cursor       Cursor // an offset or a tail has only its Offset
	Since, Until int64
	Filter       []byte
}

// Put appends the frame.
func (q Read) Put(b []byte) []byte {
	body := append([]byte(nil), q.Start, q.Flags, q.MinLevel, 0)
	body = le.AppendUint64(body, q.Limit)
	body = q.Cursor.Put(body)
	body = le.AppendUint64(body, uint64(q.Since))
	body = le.AppendUint64(body, uint64(q.Until))
	if q.Filter != nil {
		body = PutField(body, readFilterTag, q.Filter)
	}
	return PutControl(b, TRead, q.RequestID, body)
}

// PeerMeta is what the daemon saw of a sender, under its tag: a number, or bytes from tag 32 on.
type PeerMeta struct {
	Tag   uint8
	Value uint64
	Bytes []byte
}

// Records is an append as a reader gets it.
type Records struct {
	Epoch, Count            uint32
	FirstOffset, AppendTime uint64
	ProducerID              [16]byte
	ProducerEpoch           uint32
	PayloadCRC              uint32
	FirstSeq                uint64
	Skip, Take              uint32
	Meta                    []PeerMeta
	Payload                 []byte
}

// ParseRecords reads a body. The payload is not copied, and its checksum is not yet compared.
func ParseRecords(body []byte) (*Records, error) {
	r := Reader{Rest: body}
	f := &Records{
		Epoch: r.U32(), Count: r.U32(), FirstOffset: r.U64(), AppendTime: r.U64(), ProducerID: r.ID(),
		ProducerEpoch: r.U32(), PayloadCRC: r.U32(), FirstSeq: r.U64(), Skip: r.U32(), Take: r.U32(),
	}
	n := int(r.U16())
	r.Zeros(2)
	if n > peerMetaBytesMax {
		r.Fail(ErrNumber)
	}
	meta := Reader{Rest: r.Take(n)}
	crc := r.U32()
	if r.Err != nil {
		return nil, r.Err
	}
	if crc != CRC(body[:recordsFixedBytes+n]) {
		return nil, ErrChecksum
	}
	for last := uint8(0); len(meta.Rest) > 0 && meta.Err == nil; {
		m := PeerMeta{Tag: meta.U8()}
		if m.Tag >= peerMetaBytesTag {
			m.Bytes = meta.Delimited()
		} else {
			m.Value = meta.Uvarint()
		}
		if m.Tag <= last {
			meta.Fail(ErrFields)
		}
		last = m.Tag
		f.Meta = append(f.Meta, m)
	}
	if meta.Err != nil {
		return nil, meta.Err
	}
	if f.Take == 0 || uint64(f.Skip)+uint64(f.Take) > uint64(f.Count) || f.FirstOffset+uint64(f.Count) < f.FirstOffset {
		return nil, errors.New("its counts do not fit")
	}
	f.Payload = r.Rest
	return f, nil
}

// Gap names offsets that cannot be read.
type Gap struct {
	From, To uint64
	Epoch    uint32
	Reason   uint8
}

// ParseGap reads a body.
func ParseGap(body []byte) (g Gap, err error) {
	r, err := Control(body)
	if err != nil {
		return g, err
	}
	g = Gap{From: r.U64(), To: r.U64(), Epoch: r.U32(), Reason: r.U8()}
	r.Zeros(3)
	if r.Err == nil && (g.To <= g.From || g.Reason == 0 || g.Reason > 2) {
		r.Fail(ErrUnknown)
	}
	return g, tagged(&r, func(uint8, []byte) {})
}

// ParseCaughtUp reads the body of a CAUGHT_UP or PROGRESS.
func ParseCaughtUp(body []byte) (c Cursor, err error) {
	r, err := Control(body)
	if err != nil {
		return c, err
	}
	c = r.cursor()
	r.Zeros(4)
	return c, tagged(&r, func(uint8, []byte) {})
}

// ParseReadEnd reads a body.
func ParseReadEnd(body []byte) (c Cursor, reason uint8, err error) {
	r, err := Control(body)
	if err != nil {
		return c, 0, err
	}
	c, reason = r.cursor(), r.U8()
	r.Zeros(3)
	if r.Err == nil && (reason == 0 || reason > 3) {
		r.Fail(ErrUnknown)
	}
	return c, reason, tagged(&r, func(uint8, []byte) {})
}
