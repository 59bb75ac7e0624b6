package wire

// The daemon's side of the frames: for daemons that tests play, and for test vectors.

// ParseHello reads a body.
func ParseHello(body []byte) (h Hello, err error) {
	r, err := Control(body)
	if err != nil {
		return h, err
	}
	h = Hello{MinVersion: r.U16(), MaxVersion: r.U16(), ProducerID: r.ID(), ProducerEpoch: r.U32(), Intent: r.U8()}
	r.Take(3)
	return h, tagged(&r, func(tag uint8, content []byte) {
		switch tag {
		case 1:
			h.Name = string(content)
		case 2:
			h.Secret = append([]byte(nil), content...)
		}
	})
}

// ParseAppend reads a body; the payload is not copied, and its checksum is not yet compared.
func ParseAppend(body []byte) (h AppendHead, payload []byte, err error) {
	r := Reader{Rest: body}
	h = AppendHead{FirstSeq: r.U64(), Count: r.U32(), Level: r.U8()}
	flags := r.U8()
	h.Gap = flags&FlagGapMark != 0
	r.Zeros(2)
	h.PayloadCRC = r.U32()
	crc := r.U32()
	switch {
	case r.Err != nil:
		return h, nil, r.Err
	case flags&^FlagGapMark != 0:
		return h, nil, ErrReserved
	case crc != CRC(body[:AppendHeadBytes-4]):
		return h, nil, ErrChecksum
	case h.Level > 4:
		return h, nil, ErrUnknown
	}
	return h, r.Rest, nil
}

// ParseFlush reads a body.
func ParseFlush(body []byte) (level uint8, err error) {
	r, err := Control(body)
	if err != nil {
		return 0, err
	}
	level = r.U8()
	r.Zeros(3)
	if r.Err == nil && (level < 2 || level > 4) {
		r.Fail(ErrUnknown)
	}
	return level, tagged(&r, func(uint8, []byte) {})
}

// ParseRead reads a body.
func ParseRead(id uint32, body []byte) (q Read, err error) {
	r, err := Control(body)
	if err != nil {
		return q, err
	}
	q = Read{RequestID: id, Start: r.U8(), Flags: r.U8(), MinLevel: r.U8()}
	r.Zeros(1)
	q.Limit = r.U64()
	q.Cursor = r.cursor()
	q.Since, q.Until = int64(r.U64()), int64(r.U64())
	if r.Err == nil && (q.Start == 0 || q.Start > StartTail || q.Flags > 7 || q.MinLevel < 3 || q.MinLevel > 4) {
		r.Fail(ErrUnknown)
	}
	return q, tagged(&r, func(tag uint8, content []byte) {
		if tag == readFilterTag {
			q.Filter = append([]byte{}, content...)
		}
	})
}

// Put appends the frame.
func (w Welcome) Put(b []byte) []byte {
	body := le.AppendUint16(nil, w.Version)
	flags := byte(0)
	if w.MayRead {
		flags = 1
	}
	body = append(body, w.Policy, w.Highest, flags, 0, 0, 0)
	body = append(body, w.LogID[:]...)
	body = le.AppendUint32(body, w.Epoch)
	body = le.AppendUint32(body, w.Window)
	body = le.AppendUint64(body, w.EpochFirst)
	body = append(body, w.ProducerID[:]...)
	for _, v := range []uint32{w.ProducerEpoch, w.MaxAppend, w.MaxRecord, 0} {
		body = le.AppendUint32(body, v)
	}
	for _, v := range []uint64{w.Received, w.Written, w.Durable} {
		body = le.AppendUint64(body, v)
	}
	if len(w.Secret) > 0 {
		body = PutField(body, welcomeSecretTag, w.Secret)
	}
	if w.HasLast {
		last := le.AppendUint64(le.AppendUint64(nil, w.LastSeq), w.LastOffset)
		body = PutField(body, welcomeLastTag, append(last, w.LastLevel))
	}
	if len(w.Earlier) > 0 {
		var epochs []byte
		for _, e := range w.Earlier {
			epochs = le.AppendUint64(le.AppendUint32(epochs, e.Epoch), e.First)
		}
		body = PutField(body, welcomeEarlierTag, epochs)
	}
	return PutControl(b, TWelcome, 0, body)
}

// Put appends the frame.
func (a Accepted) Put(b []byte) []byte {
	body := le.AppendUint64(le.AppendUint64(nil, a.FirstSeq), a.FirstOffset)
	body = le.AppendUint32(le.AppendUint32(body, a.Count), a.Epoch)
	flags := byte(0)
	if a.StoredBefore {
		flags = FlagStoredBefore
	}
	return PutControl(b, TAccepted, 0, append(body, flags, 0, 0, 0))
}

// Put appends the frame.
func (w Watermark) Put(b []byte) []byte {
	body := le.AppendUint64(le.AppendUint64(nil, w.Offset), w.EpochFirst)
	body = le.AppendUint32(body, w.Epoch)
	return PutControl(b, TWatermark, w.RequestID, append(body, w.Level, 0, 0, 0))
}

func (e *Error) put(body []byte) []byte {
	body = append(le.AppendUint16(body, e.Code), e.Flags, 0)
	if e.Text != "" {
		body = PutText(append(body, 1), Cut(e.Text, errorTextBytesMax))
	}
	if e.Expected != nil {
		body = PutField(body, 2, le.AppendUint64(nil, *e.Expected))
	}
	if e.RecordIndex != nil {
		body = PutField(body, 3, le.AppendUint32(nil, *e.RecordIndex))
	}
	if e.Limit != nil {
		body = PutField(body, 4, le.AppendUint64(nil, *e.Limit))
	}
	if e.Parting != nil {
		body = PutField(body, 5, e.Parting.Put(nil))
	}
	if e.RetryMillis != nil {
		body = PutField(body, 6, le.AppendUint32(nil, *e.RetryMillis))
	}
	return body
}

// Put appends an ERROR.
func (e *Error) Put(b []byte, id uint32) []byte { return PutControl(b, TError, id, e.put(nil)) }

// Put appends the frame.
func (f Refused) Put(b []byte) []byte {
	body := le.AppendUint32(le.AppendUint64(nil, f.FirstSeq), f.Count)
	return PutControl(b, TRefused, 0, f.Error.put(body))
}

// Put appends the frame.
func (f *Records) Put(b []byte, id uint32) []byte {
	body := le.AppendUint32(le.AppendUint32(nil, f.Epoch), f.Count)
	body = le.AppendUint64(le.AppendUint64(body, f.FirstOffset), f.AppendTime)
	body = append(body, f.ProducerID[:]...)
	body = le.AppendUint32(le.AppendUint32(body, f.ProducerEpoch), f.PayloadCRC)
	body = le.AppendUint64(body, f.FirstSeq)
	body = le.AppendUint32(le.AppendUint32(body, f.Skip), f.Take)
	var meta []byte
	for _, m := range f.Meta {
		if m.Tag >= peerMetaBytesTag {
			meta = append(PutUvarint(append(meta, m.Tag), uint64(len(m.Bytes))), m.Bytes...)
		} else {
			meta = PutUvarint(append(meta, m.Tag), m.Value)
		}
	}
	body = append(le.AppendUint16(body, uint16(len(meta))), 0, 0)
	body = append(body, meta...)
	body = le.AppendUint32(body, CRC(body))
	b = PutHeader(b, Header{Type: TRecords, Len: uint32(len(body) + len(f.Payload)), RequestID: id})
	return append(append(b, body...), f.Payload...)
}

// Put appends the frame.
func (g Gap) Put(b []byte, id uint32) []byte {
	body := le.AppendUint64(le.AppendUint64(nil, g.From), g.To)
	return PutControl(b, TGap, id, append(le.AppendUint32(body, g.Epoch), g.Reason, 0, 0, 0))
}

// PutCaughtUp appends a CAUGHT_UP.
func PutCaughtUp(b []byte, id uint32, c Cursor) []byte {
	return PutControl(b, TCaughtUp, id, append(c.Put(nil), 0, 0, 0, 0))
}

// PutProgress appends a PROGRESS.
func PutProgress(b []byte, id uint32, c Cursor) []byte {
	return PutControl(b, TProgress, id, append(c.Put(nil), 0, 0, 0, 0))
}

// PutReadEnd appends a READ_END.
func PutReadEnd(b []byte, id uint32, c Cursor, reason uint8) []byte {
	return PutControl(b, TReadEnd, id, append(c.Put(nil), reason, 0, 0, 0))
}
