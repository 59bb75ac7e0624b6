//! Frames: what is written is read, in pieces of any size; what is damaged is an error or as long as before, never a
//! panic and never a wait for what will not come.

mod support;

use bytes::{BufMut, BytesMut};
use clad_proto::frame::*;
use clad_proto::*;
use proptest::prelude::*;
use support::*;

const MAX: u32 = limits::DEFAULT_MAX_APPEND_BYTES;

fn encoded(frame: &Frame) -> BytesMut {
    let mut buf = BytesMut::new();
    frame.encode(&mut buf);
    buf
}

#[test]
fn every_type_has_an_example() {
    let kinds: Vec<FrameType> = frames().iter().map(|(_, frame)| frame.kind()).collect();
    for kind in FrameType::ALL {
        assert!(kinds.contains(&kind), "{kind:?}");
        assert_eq!(FrameType::from_code(kind.code()), Some(kind));
    }
}

#[test]
fn all_frames_in_one_stream_in_pieces_of_any_size() {
    let frames: Vec<Frame> = frames().into_iter().map(|(_, frame)| frame).collect();
    let mut stream = BytesMut::new();
    frames.iter().for_each(|frame| frame.encode(&mut stream));
    for piece in [1, 2, 7, 16, 64, 1000, usize::MAX] {
        let decoder = FrameDecoder::new(MAX);
        let mut buf = BytesMut::new();
        let mut back = Vec::new();
        for chunk in stream.chunks(piece.min(stream.len())) {
            buf.put_slice(chunk);
            while let Some(frame) = decoder.next(&mut buf).expect("a good stream") {
                back.push(frame);
            }
        }
        assert_eq!(back, frames);
        assert!(buf.is_empty());
    }
}

#[test]
fn every_truncation_waits_and_every_flip_is_seen() {
    for (name, frame) in frames() {
        let bytes = encoded(&frame);
        for len in 0..bytes.len() {
            assert_eq!(peek(&bytes[..len], MAX), Ok(None), "{name} cut to {len}");
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                match FrameDecoder::new(MAX).next(&mut damaged) {
                    Err(_) => {}
                    // Only a payload may change unseen here: its checksum shows it to who looks at the payload.
                    Ok(Some(Frame::Append(append))) => assert!(!append.checksum_holds(), "{name} at {at}"),
                    Ok(Some(Frame::Records(records))) => assert!(!records.checksum_holds(), "{name} at {at}"),
                    Ok(Some(Frame::Forward(forward))) => assert!(!forward.checksum_holds(), "{name} at {at}"),
                    Ok(other) => panic!("{name} flipped at {at}.{bit} gives {other:?}"),
                }
            }
        }
    }
}

#[test]
fn bodies_cut_short_under_a_good_header_are_errors() {
    for (name, frame) in frames() {
        let bytes = encoded(&frame);
        let raw = peek(&bytes, MAX).expect("good").expect("whole");
        for len in 0..raw.body.len() {
            let header = FrameHeader { body_len: len as u32, ..raw.header };
            let mut cut = BytesMut::from(&header.encode()[..]);
            cut.put_slice(&raw.body[..len]);
            match FrameDecoder::new(MAX).next(&mut cut) {
                Err(_) => {}
                Ok(Some(Frame::Append(append))) => assert!(!append.checksum_holds(), "{name} cut to {len}"),
                Ok(Some(Frame::Records(records))) => assert!(!records.checksum_holds(), "{name} cut to {len}"),
                Ok(Some(Frame::Forward(forward))) => assert!(!forward.checksum_holds(), "{name} cut to {len}"),
                Ok(other) => panic!("{name} cut to {len} gives {other:?}"),
            }
        }
    }
}

#[test]
fn control_bodies_with_good_checksums_and_bad_fields_never_panic() {
    // Flips under a checksum that was made again reach every check behind it.
    for (_, frame) in frames() {
        let bytes = encoded(&frame);
        let raw = peek(&bytes, MAX).expect("good").expect("whole");
        let fields = raw.body.len() - 4;
        for at in 0..fields {
            for byte in [0, 1, 2, 3, 0x7F, 0x80, 0xFF] {
                let mut body = raw.body.to_vec();
                body[at] = byte;
                let crc = crc32c(&body[..fields]);
                body[fields..].copy_from_slice(&crc.to_le_bytes());
                let mut damaged = BytesMut::from(&raw.header.encode()[..]);
                damaged.put_slice(&body);
                let expect = damaged.clone();
                let Ok(Some(decoded)) = FrameDecoder::new(MAX).next(&mut damaged) else { continue };
                let again = encoded(&decoded);
                let has_optional = matches!(&frame, Frame::Read(read) if read.filter.is_some())
                    || matches!(decoded, Frame::Hello(_) | Frame::Error(_) | Frame::Refused(_) | Frame::Welcome(_))
                    || matches!(decoded, Frame::CommitCursor(_) | Frame::GetCursor(_) | Frame::Cursor(_));
                if !has_optional {
                    assert_eq!(again, expect, "frames without optional parts have one form");
                }
            }
        }
    }
}

#[test]
fn a_length_is_not_believed() {
    let header = |kind, body_len| FrameHeader { kind, body_len, request_id: 0 }.encode();
    let too_large = peek(&header(FrameType::Append, u32::MAX), 1000).expect_err("too large");
    assert_eq!(too_large, FrameError::TooLarge { kind: FrameType::Append, len: u32::MAX, max: 1024 });
    assert_eq!(too_large.info().code, ErrorCode::AppendTooLarge);
    assert_eq!(too_large.info().limit, Some(1000), "the limit is of the payload");
    assert!(peek(&header(FrameType::Append, 1024), 1000).expect("just fits").is_none());
    assert!(peek(&header(FrameType::Append, 23), 1000).is_err());
    assert!(peek(&header(FrameType::Hello, 4097), MAX).is_err());
    assert!(peek(&header(FrameType::Ping, 3), MAX).is_err());
    let mut buf = BytesMut::from(&header(FrameType::Append, 1_000_000)[..]);
    assert_eq!(FrameDecoder::new(MAX).next(&mut buf), Ok(None));
    assert!(buf.capacity() < 200_000, "a header alone does not make the decoder reserve a frame");
}

#[test]
fn reserved_bits_of_a_header_are_ignored_where_versions_are_not_agreed_on() {
    for (name, frame) in frames() {
        let mut bytes = encoded(&frame);
        bytes[3] = 0x80;
        let crc = crc32c(&bytes[..12]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        let head: [u8; 16] = bytes[..16].try_into().expect("a header");
        let ignored = matches!(frame, Frame::Hello(_) | Frame::Error(_));
        assert_eq!(FrameHeader::decode(&head, MAX).is_ok(), ignored, "{name}");
    }
}

#[test]
fn other_protocols_are_detected_at_the_first_byte() {
    assert_eq!(peek(b"G", MAX), Err(FrameError::BadMagic(b'G')));
    assert_eq!(peek(b"GET / HTTP/1.1\r\n", MAX), Err(FrameError::BadMagic(b'G')));
}

#[test]
fn tags_of_a_later_version_are_skipped() {
    let hello = encoded(&frames()[0].1);
    let raw = peek(&hello, MAX).expect("good").expect("whole");
    let mut body = raw.body[..raw.body.len() - 4].to_vec();
    body.extend([99, 2, 1, 2]);
    let crc = crc32c(&body);
    body.extend(crc.to_le_bytes());
    let header = FrameHeader { body_len: body.len() as u32, ..raw.header };
    let raw = RawFrame { header, body: &body };
    assert_eq!(raw.decode(), Ok(frames()[0].1.clone()));
}

#[test]
fn long_texts_are_cut_between_characters() {
    let error = ErrorInfo::new(ErrorCode::Internal, "ä".repeat(1000));
    let mut buf = encoded(&Frame::Error(ErrorFrame { request_id: 0, error }));
    let Ok(Some(Frame::Error(back))) = FrameDecoder::new(MAX).next(&mut buf) else { panic!("an error") };
    assert_eq!(back.error.text, "ä".repeat(512));
    let hello = Hello { name: "ä".repeat(100), secret: vec![1; 40], ..Hello::default() };
    let Ok(Some(Frame::Hello(back))) = FrameDecoder::new(MAX).next(&mut encoded(&Frame::Hello(hello))) else {
        panic!("a hello")
    };
    assert_eq!((back.name.len(), back.secret.len()), (128, 32));
}

#[test]
fn payloads_are_not_copied_and_views_agree() {
    let (_, frame) = frames().into_iter().find(|(name, _)| *name == "append").expect("there is one");
    let bytes = encoded(&frame);
    let raw = peek(&bytes, MAX).expect("good").expect("whole");
    assert_eq!(raw.total_len(), bytes.len());
    let view = AppendView::parse(raw.body).expect("good");
    let Frame::Append(append) = &frame else { panic!("an append") };
    assert_eq!((view.head, view.payload), (append.head, &append.payload[..]));
    assert!(view.checksum_holds());
    assert_eq!(append_prefix(&append.head, append.payload.len() as u32), bytes[..40]);
    let mut buf = bytes.clone();
    let at = buf.as_ptr() as usize;
    let Ok(Some(Frame::Append(taken))) = FrameDecoder::new(MAX).next(&mut buf) else { panic!("an append") };
    assert_eq!(taken.payload.as_ptr() as usize, at + 40, "a slice of the buffer");
}

proptest! {
    #[test]
    fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = peek(&bytes, MAX);
        let _ = AppendView::parse(&bytes);
        let _ = RecordsView::parse(&bytes);
        let _ = ForwardView::parse(&bytes);
        let _ = PeerMeta::decode(&bytes);
    }

    #[test]
    fn any_body_of_any_type_never_panics(code in 0usize..FrameType::ALL.len(), fields in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut body = fields;
        body.extend(crc32c(&body).to_le_bytes());
        let header = FrameHeader { kind: FrameType::ALL[code], body_len: body.len() as u32, request_id: 1 };
        let _ = RawFrame { header, body: &body }.decode();
    }

    #[test]
    fn peer_meta_round_trips(
        transport in proptest::option::of(any::<u32>()),
        pid: Option<u32>,
        pid_start: Option<u64>,
        uid: Option<u32>,
        gid: Option<u32>,
        unknown in proptest::collection::btree_map(6u8..32, any::<u64>(), 0..4),
        address: Option<std::net::SocketAddrV4>,
        unknown_bytes in proptest::collection::btree_map(33u8.., proptest::collection::vec(any::<u8>(), 0..130), 0..4),
    ) {
        let transport = transport.map(Transport::from_code);
        let unknown: Vec<_> = unknown.into_iter().collect();
        let numbers_alone = PeerMeta { transport, pid, pid_start, uid, gid, unknown, ..PeerMeta::default() };
        let address = address.map(std::net::SocketAddr::V4);
        let unknown_bytes = unknown_bytes.into_iter().collect();
        let peer_meta = PeerMeta { address, unknown_bytes, ..numbers_alone.clone() };
        let bytes = peer_meta.to_bytes();
        prop_assert_eq!(numbers(&bytes), &numbers_alone.to_bytes()[..], "what a peer of version 1 gets");
        prop_assert_eq!(PeerMeta::decode(&bytes), Ok(peer_meta));
    }

    #[test]
    fn decoded_peer_meta_has_one_encoding(bytes in proptest::collection::vec(prop_oneof![0u8..12, 30u8..40], 0..20)) {
        if let Ok(peer_meta) = PeerMeta::decode(&bytes) {
            prop_assert_eq!(peer_meta.to_bytes(), bytes);
        }
    }
}
