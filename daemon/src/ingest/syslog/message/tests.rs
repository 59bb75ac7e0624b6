//! Messages as senders really make them.

use std::borrow::Cow;

use super::*;

/// 27 November 2026, 12:00:00 UTC.
const NOW: u64 = 1_795_780_800_000_000_000;
const SECOND: u64 = 1_000_000_000;

fn rules(format: SyslogFormat) -> Rules {
    Rules { format, zone: TimeZone::UTC, local_names: None }
}

fn auto(bytes: &[u8]) -> SyslogMessage<'_> {
    parse(bytes, &rules(SyslogFormat::Auto), NOW)
}

fn local(bytes: &[u8]) -> SyslogMessage<'_> {
    let local_names = Some(vec!["web1.example".to_owned(), "web1".to_owned()]);
    parse(bytes, &Rules { local_names, ..rules(SyslogFormat::Auto) }, NOW)
}

fn time(text: &str) -> Option<u64> {
    let time: jiff::Timestamp = text.parse().expect("a time");
    Some(u64::try_from(time.as_nanosecond()).expect("after 1970"))
}

/// Host, program, process and body.
type Parts<'a> = (Option<&'a str>, Option<&'a str>, Option<&'a str>, &'a str);

fn parts<'a>(message: &SyslogMessage<'a>) -> Parts<'a> {
    (message.hostname, message.app_name, message.procid, std::str::from_utf8(message.body).expect("text"))
}

#[test]
fn rfc_5424_by_its_own_examples() {
    let bytes = b"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \xEF\xBB\xBF'su root' failed for lonvick on /dev/pts/8";
    let message = auto(bytes);
    assert_eq!(
        parts(&message),
        (Some("mymachine.example.com"), Some("su"), None, "'su root' failed for lonvick on /dev/pts/8")
    );
    assert_eq!((message.priority, message.facility(), message.msgid), (Some(34), Some("auth"), Some("ID47")));
    assert_eq!((message.time, message.has_bom, message.fault), (time("2003-10-11T22:14:15.003Z"), true, None));

    let message =
        auto(b"<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It's time to make the do-nuts.");
    assert_eq!(message.time, time("2003-08-24T12:14:15.000003Z"));
    assert_eq!(parts(&message), (Some("192.0.2.1"), Some("myproc"), Some("8710"), "%% It's time to make the do-nuts."));

    let bytes = br#"<165>1 2003-10-11T22:14:15.003Z h evntslog - ID47 [exampleSDID@32473 iut="3" eventSource="Ap\"p\\l\]i\x"][empty][p@1 a="" a="2"]"#;
    let message = auto(bytes);
    let found: Vec<_> = message.elements.parameters().map(|p| (p.element, p.name, p.value)).collect();
    let value = |text: &'static str| Cow::<[u8]>::Borrowed(text.as_bytes());
    assert_eq!(
        found,
        [
            ("exampleSDID@32473", Some("iut"), value("3")),
            ("exampleSDID@32473", Some("eventSource"), value(r#"Ap"p\l]i\x"#)),
            ("empty", None, value("")),
            ("p@1", Some("a"), value("")),
            ("p@1", Some("a"), value("2")),
        ]
    );
    assert_eq!((message.body, message.fault, message.format), (&b""[..], None, metrics::SyslogFormat::Rfc5424));
    let nil = auto(b"<13>1 - - - - - -");
    assert_eq!((nil.time, parts(&nil), nil.fault), (None, (None, None, None, ""), None));
}

/// A message that no rule of it allows is stored whole, with the parts that are certain.
#[test]
fn what_is_not_rfc_5424_is_kept_whole() {
    for (bytes, priority) in [
        (&b"<13>1 2026-13-11T22:14:15Z h a p m - x"[..], Some(13)),
        (b"<13>1 yesterday h a p m - x", Some(13)),
        (b"<13>1 - h a p", Some(13)),
        (b"<13>1 - h  p m - x", Some(13)),
        (b"<13>1 - h\x01 a p m - x", Some(13)),
        (b"<13>1 - h \xFF p m - x", Some(13)),
        (b"<999999999>", Some(13)),
        (b"<192>1 - - - - - -", Some(13)),
        (b"<>x", Some(13)),
        (b"plain", Some(13)),
        (b"", Some(13)),
    ] {
        let message = auto(bytes);
        assert_eq!((message.body, message.priority), (bytes, priority), "{message:?}");
        assert!(message.fault.is_some() && message.format == metrics::SyslogFormat::Raw, "{message:?}");
    }
    // The header was right.
    for bytes in [
        &br#"<11>1 - h app p m [a b="x"#[..],
        br#"<11>1 - h app p m [a b="x"]tail"#,
        br#"<11>1 - h app p m [a b=x] tail"#,
        b"<11>1 - h app p m tail",
        b"<11>1 - h app p m [",
        b"<11>1 - h app p m [] x",
    ] {
        let message = auto(bytes);
        assert_eq!((message.body, message.app_name, message.priority), (bytes, Some("app"), Some(11)), "{message:?}");
        assert!(message.fault.is_some() && message.elements == Elements::default(), "{message:?}");
    }
    let strict = parse(b"<13>Oct 11 22:14:15 h a: x", &rules(SyslogFormat::Rfc5424), NOW);
    assert_eq!((strict.fault, strict.app_name), (Some(rfc5424::NO_VERSION), None));
    let raw = parse(b"<13>1 - h a p m - x", &rules(SyslogFormat::Raw), NOW);
    assert_eq!((raw.body, raw.priority, raw.fault), (&b"<13>1 - h a p m - x"[..], None, None));
}

#[test]
fn rfc_3164_as_the_c_library_and_relays_send_it() {
    for (bytes, expected, is_local) in [
        (
            &b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed"[..],
            (Some("mymachine"), Some("su"), None, "'su root' failed"),
            false,
        ),
        (b"<30>Nov  5 01:02:03 h sshd[1234]: Accepted", (Some("h"), Some("sshd"), Some("1234"), "Accepted"), false),
        (b"<30>Nov 5 01:02:03 fe80::1 sshd[1]: v6", (Some("fe80::1"), Some("sshd"), Some("1"), "v6"), false),
        // A relay that keeps no host, and a tag without a colon.
        (b"<30>Nov 15 01:02:03 sshd[1234]: no host", (None, Some("sshd"), Some("1234"), "no host"), false),
        (b"<30>Nov 15 01:02:03 h kernel[7] text", (Some("h"), Some("kernel"), Some("7"), "text"), false),
        (b"<30>Nov 15 01:02:03 h just a sentence: here", (Some("h"), None, None, "just a sentence: here"), false),
        (b"<30>Nov 15 01:02:03 h http://a is no tag", (Some("h"), None, None, "http://a is no tag"), false),
        // The C library, logger, and what puts its own host there.
        (b"<13>Nov 15 01:02:03 prog[42]: hello", (None, Some("prog"), Some("42"), "hello"), true),
        (b"<13>Nov 15 01:02:03 hello world", (None, None, None, "hello world"), true),
        (b"<13>Nov 15 01:02:03 web1 prog: hello", (Some("web1"), Some("prog"), None, "hello"), true),
        (b"<13>Nov 15 01:02:03 web2 prog: hello", (None, None, None, "web2 prog: hello"), true),
        // Python's SysLogHandler has neither time nor host.
        (b"<14>myapp: it began", (None, Some("myapp"), None, "it began"), false),
        (b"<14>it began", (None, None, None, "it began"), false),
        (b"<13>Nov 15 01:02:03 h tag:", (Some("h"), Some("tag"), None, ""), false),
        (b"<13>Nov 15 01:02:03 h", (None, None, None, "h"), false),
    ] {
        let message = if is_local { local(bytes) } else { auto(bytes) };
        assert_eq!(parts(&message), expected, "{}", String::from_utf8_lossy(bytes));
        assert_eq!((message.fault, message.format), (None, metrics::SyslogFormat::Rfc3164));
    }
}

#[test]
fn rfc_3164_as_vendors_make_it() {
    let cases: &[(&[u8], Parts<'_>, Option<u64>)] = &[
        // rsyslog's forward format, with a zone and with fractions.
        (
            b"<13>2026-11-27T10:00:00.123456+02:00 h app[1]: x",
            (Some("h"), Some("app"), Some("1"), "x"),
            time("2026-11-27T08:00:00.123456Z"),
        ),
        (b"<13>2026-11-27T10:00:00 h app: x", (Some("h"), Some("app"), None, "x"), time("2026-11-27T10:00:00Z")),
        // Cisco: a number, a clock that is not set, milliseconds, a zone, a colon.
        (
            b"<189>237: *Mar  1 18:46:11.123: %SYS-5-CONFIG_I: Configured",
            (None, Some("%SYS-5-CONFIG_I"), None, "Configured"),
            time("2027-03-01T18:46:11.123Z"),
        ),
        (
            b"<189>29: Nov 27 09:00:00.5 UTC: %LINK-3-UPDOWN: up",
            (None, Some("%LINK-3-UPDOWN"), None, "up"),
            time("2026-11-27T09:00:00.5Z"),
        ),
        (
            b"<166>Oct 11 2024 22:14:15: %ASA-6-106100: permitted",
            (None, Some("%ASA-6-106100"), None, "permitted"),
            time("2024-10-11T22:14:15Z"),
        ),
        (
            b"<166>Oct 11 2024 22:14:15 fw1 : %ASA-6-106100: permitted",
            (Some("fw1"), Some("%ASA-6-106100"), None, "permitted"),
            time("2024-10-11T22:14:15Z"),
        ),
        (b"<13>Oct 11 22:14:15 2024 h app: x", (Some("h"), Some("app"), None, "x"), time("2024-10-11T22:14:15Z")),
        // No such day: no time, and the rest is what it is.
        (b"<13>Feb 30 22:14:15 h app: x", (Some("h"), Some("app"), None, "x"), None),
        (b"<13>Oct 11 25:14:15 h app: x", (Some("h"), Some("app"), None, "x"), None),
        // Not times at all.
        (b"<13>Octopus 11 h app: x", (None, None, None, "Octopus 11 h app: x"), None),
        (b"<13>2026 was a year", (None, None, None, "2026 was a year"), None),
    ];
    for (bytes, expected, time) in cases {
        let message = auto(bytes);
        let text = String::from_utf8_lossy(bytes);
        assert_eq!((parts(&message), message.time, message.fault), (*expected, *time, None), "{text}");
    }
    let cisco = auto(b"<189>237: *Mar  1 18:46:11.123 CET: %SYS-5-CONFIG_I: Configured");
    assert_eq!(cisco.clock, Clock { sequence: Some("237"), zone: Some("CET"), is_doubtful: true });
    let plain = auto(b"<189>237: no time");
    assert_eq!((plain.clock, parts(&plain)), (Clock::default(), (None, Some("237"), None, "no time")));
}

#[test]
fn the_year_is_the_one_nearest_to_now() {
    let at = |text: &str, now: &str| {
        let bytes = format!("<13>{text} h a: x");
        parse(bytes.as_bytes(), &rules(SyslogFormat::Auto), time(now).unwrap()).time
    };
    assert_eq!(at("Dec 31 23:59:59", "2027-01-01T00:00:05Z"), time("2026-12-31T23:59:59Z"));
    assert_eq!(at("Jan  1 00:00:05", "2026-12-31T23:59:59Z"), time("2027-01-01T00:00:05Z"));
    assert_eq!(at("Jul  1 00:00:00", "2026-11-27T00:00:00Z"), time("2026-07-01T00:00:00Z"));
    assert_eq!(at("May 28 11:00:00", "2026-11-27T00:00:00Z"), time("2027-05-28T11:00:00Z"), "182 days, or 183");
    assert_eq!(at("May 29 13:00:00", "2026-11-27T00:00:00Z"), time("2026-05-29T13:00:00Z"), "181 days, or 184");
    assert_eq!(at("Feb 29 12:00:00", "2026-11-27T00:00:00Z"), time("2028-02-29T12:00:00Z"));
}

#[test]
fn a_time_without_a_zone_is_in_the_listeners() {
    let berlin = TimeZone::get("Europe/Berlin").unwrap();
    let rules = Rules { zone: berlin, ..rules(SyslogFormat::Auto) };
    let at = |text: &str| parse(format!("<13>{text} h a: x").as_bytes(), &rules, NOW).time;
    assert_eq!(at("Nov 27 13:00:00"), Some(NOW));
    assert_eq!(at("2026-11-27T13:00:01"), Some(NOW + SECOND));
    assert_eq!(at("2026-11-27T13:00:01+03:00"), time("2026-11-27T10:00:01Z"));
    assert_eq!(at("Jul 27 14:00:00"), time("2026-07-27T12:00:00Z"), "in summer");
}

#[test]
fn bytes_that_are_no_text_stay_as_they_are() {
    let message = auto(b"<13>Nov 27 12:00:00 h app: \x80\xFF\0\x1B[31m");
    assert_eq!((message.body, message.app_name), (&b"\x80\xFF\0\x1B[31m"[..], Some("app")));
    let tag = [b"<13>Nov 27 12:00:00 h ".to_vec(), vec![b'a'; 64 << 10], b": x".to_vec()].concat();
    let long = auto(&tag);
    assert_eq!((long.app_name, long.body.len()), (None, (64 << 10) + 3), "no tag is so long");
}

#[test]
fn no_bytes_break_it() {
    let pieces: [&[u8]; 16] = [
        b"<13>",
        b"1 ",
        b"- ",
        b"[",
        b"]",
        b"a",
        b"=\"",
        b"\\",
        b"\"",
        b"Nov 27 ",
        b"12:00:00",
        b" ",
        b": ",
        b"\xFF",
        b"2026-11-27T12:00:00Z",
        b".",
    ];
    let mut state = 7_u64;
    for _ in 0..20_000 {
        let mut bytes = Vec::new();
        for _ in 0..12 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes.extend_from_slice(pieces[(state >> 60) as usize]);
        }
        let payloads = crate::ingest::syslog::take_apart(&bytes[..bytes.len().min(40)]);
        assert_eq!(payloads.iter().map(|payload| payload.count).sum::<u32>(), 8);
    }
}
