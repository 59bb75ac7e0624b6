//! gRPC messages that mean the same as frames go there and back; what a peer gets wrong is an error.
#![cfg(feature = "grpc")]

mod support;

use clad_proto::frame::*;
use clad_proto::grpc::v1;
use clad_proto::*;
use support::*;

#[test]
fn what_both_protocols_say_is_the_same() {
    // gRPC does not forward.
    let both = frames().into_iter().filter(|(name, _)| !name.contains("forward"));
    for (name, frame) in both {
        match frame {
            Frame::Hello(hello) => {
                // A gRPC stream is for appending.
                let hello = Hello { intent: Intent { append: true, read: false }, ..hello };
                assert_eq!(Hello::try_from(v1::Hello::from(hello.clone())), Ok(hello), "{name}");
            }
            Frame::Welcome(welcome) => {
                let without_offsets = v1::Welcome { offsets: None, ..welcome.clone().into() };
                assert!(Welcome::try_from(without_offsets).is_err(), "{name}: a log that says nothing of its ends");
                assert_eq!(Welcome::try_from(v1::Welcome::from(welcome.clone())), Ok(welcome), "{name}");
            }
            Frame::Read(read) => {
                let read = Read { request_id: 1, ..read };
                assert_eq!(Read::try_from(v1::ReadRequest::from(read.clone())), Ok(read), "{name}");
            }
            Frame::Accepted(accepted) => assert_eq!(Accepted::from(v1::Accepted::from(accepted)), accepted),
            Frame::Watermark(mark) => assert_eq!(v1::Watermark::from(mark).watermark(), Some(mark)),
            Frame::Refused(refused) => assert_eq!(Refused::from(v1::Refused::from(refused.clone())), refused),
            Frame::CaughtUp(CaughtUp { cursor, .. }) => {
                assert_eq!(v1::Cursor::from(cursor).cursor(), Some(cursor));
            }
            _ => {}
        }
    }
}

#[test]
fn levels_and_policies_keep_their_meaning() {
    for level in [AckLevel::None, AckLevel::Received, AckLevel::Written, AckLevel::Durable] {
        assert_eq!(v1::AckLevel::from(level).level(), Some(level));
    }
    assert_eq!(v1::AckLevel::from(AckLevel::Posted).level(), Some(AckLevel::None), "never rounded up");
    for policy in DurabilityPolicy::ALL {
        assert_eq!(v1::DurabilityPolicy::from(policy).policy(), Some(policy));
    }
    assert_eq!(v1::DurabilityPolicy::Unspecified.policy(), None);
}

#[test]
fn what_a_peer_gets_wrong_is_an_error() {
    let short = v1::Hello { producer_id: vec![1; 15].into(), ..Default::default() };
    let code = |result: Result<Hello, ErrorInfo>| result.expect_err("wrong").code;
    assert_eq!(code(Hello::try_from(short)), ErrorCode::MalformedFrame);
    let named = v1::Hello { name: "x".repeat(129), ..Default::default() };
    assert_eq!(code(Hello::try_from(named)), ErrorCode::MalformedFrame);
    assert_eq!(Hello::try_from(v1::Hello::default()).expect("all may be left out").producer_id, ProducerId::ZERO);
    assert!(Welcome::try_from(v1::Welcome::default()).is_err());
    let low = v1::ReadRequest { min_level: v1::AckLevel::Received.into(), ..Default::default() };
    assert!(Read::try_from(low).is_err());
    let plain = Read::try_from(v1::ReadRequest::default()).expect("all may be left out");
    assert_eq!((plain.from, plain.min_level), (ReadFrom::Offset(0), AckLevel::Written));
    let cursor = v1::Cursor { log_id: vec![0; 17].into(), ..Default::default() };
    let bad = v1::ReadRequest { from: Some(v1::read_request::From::Cursor(cursor)), ..Default::default() };
    assert!(Read::try_from(bad).is_err());
}
