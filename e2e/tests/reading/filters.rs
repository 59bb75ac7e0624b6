//! What a filter gives is what a look at every record gives, on each transport; and little is sent where little matches.

use clad_client::{AnyValue, Filter, Group, KeyValue, Reader, Record, Severity, Start};
use clad_e2e::raw::hello_reader;
use clad_e2e::tool::clactl_ends;
use clad_e2e::{Daemon, Raw};
use clad_proto::frame::{Frame, Read, ReadFrom};
use clad_proto::{AckLevel, Payload, PayloadBuilder};
use clad_sim::Rng;

use crate::{Appender, address, read_all, runtime, small};

const APPENDS: u64 = 300;
const FILTERS: u64 = 120;
const COMPONENTS: [&str; 5] = ["billing", "billing-api", "bill", "shop", "shop*"];
const WORDS: [&str; 6] = ["timeout", "Timeout", "refused", "paid", "néant", "x"];

/// A record of the test, and what the log knows of it beside.
struct Known {
    offset: u64,
    component: Option<&'static str>,
    record: Record,
}

fn record(rng: &mut Rng, number: u64) -> Record {
    let word = |rng: &mut Rng| WORDS[rng.index(WORDS.len())];
    let body = match rng.below(6) {
        0 => None,
        1 => Some(AnyValue::Array(vec![word(rng).into()])),
        2 => Some(AnyValue::Bytes([b"\xff", word(rng).as_bytes(), b"\xc3"].concat())),
        _ => Some(format!("{} {} {number}", word(rng), word(rng)).into()),
    };
    let attributes: Vec<KeyValue> = (0..rng.below(3))
        .map(|_| match rng.below(3) {
            0 => KeyValue::new("user", i64::try_from(rng.below(4)).expect("small")),
            1 => KeyValue::new("user", rng.below(4).to_string()),
            _ => KeyValue::new("ok", rng.below(2) == 0),
        })
        .collect();
    Record {
        time_unix_nano: 1 + number,
        severity_number: i32::try_from(rng.below(26)).expect("small") - 1,
        body,
        attributes,
        trace_id: if rng.below(3) == 0 { vec![u8::try_from(rng.below(3)).expect("small"); 16] } else { Vec::new() },
        ..Record::default()
    }
}

fn append(rng: &mut Rng, offset: u64, log: &mut Vec<Known>) -> Payload {
    let component = (rng.below(6) > 0).then(|| COMPONENTS[rng.index(COMPONENTS.len())]);
    let mut builder =
        PayloadBuilder::new(&component.map_or_else(Group::default, Group::component_named)).expect("a group");
    for offset in offset..=offset + rng.below(4) {
        let record = record(rng, offset);
        builder.push(&record).expect("a record");
        log.push(Known { offset, component, record });
    }
    builder.finish()
}

type Holds = Box<dyn Fn(&Known) -> bool>;

/// A random condition, and the same by hand.
fn condition(rng: &mut Rng, filter: Filter, deep: bool) -> (Filter, Holds) {
    let word = WORDS[rng.index(WORDS.len())];
    let holds_text = |known: &Known, finds: &dyn Fn(&str) -> bool| match &known.record.body {
        Some(AnyValue::String(text)) => finds(text),
        Some(AnyValue::Bytes(bytes)) => finds(&String::from_utf8_lossy(bytes)),
        Some(_) => true,
        None => false,
    };
    match rng.below(if deep { 7 } else { 6 }) {
        0 => {
            let (a, b) = (i32::try_from(rng.below(25)).expect("small"), i32::try_from(rng.below(25)).expect("small"));
            let holds = move |known: &Known| (a.max(1)..=b).contains(&known.record.severity_number);
            (filter.severity_within(Severity(a), Severity(b)), Box::new(holds))
        }
        1 => {
            let name = COMPONENTS[rng.index(COMPONENTS.len())];
            if rng.below(2) == 0 {
                (filter.component_named(name), Box::new(move |known| known.component == Some(name)))
            } else {
                let holds =
                    move |known: &Known| known.component.is_some_and(|is| is.starts_with(name.trim_end_matches('*')));
                (filter.component(&format!("{}*", name.trim_end_matches('*'))), Box::new(holds))
            }
        }
        2 => {
            let pair = match rng.below(2) {
                0 => KeyValue::new("user", i64::try_from(rng.below(4)).expect("small")),
                _ => KeyValue::new("ok", true),
            };
            let filter = filter.attribute(pair.key.clone(), pair.value.clone().expect("a value"));
            (filter, Box::new(move |known| known.record.attributes.contains(&pair)))
        }
        3 => (filter.body_contains(word), Box::new(move |known| holds_text(known, &|text| text.contains(word)))),
        4 => {
            let id = vec![u8::try_from(rng.below(3)).expect("small"); 16];
            (filter.trace_id(id.clone()), Box::new(move |known| known.record.trace_id == id))
        }
        5 => {
            let holds = move |known: &Known| {
                holds_text(known, &|text| text.to_lowercase().contains("timeout") || text.contains("paid"))
            };
            (
                filter.any([
                    Filter::new().body_contains("paid"),
                    Filter::new().body_contains("timeout"),
                    Filter::new().body_contains("Timeout"),
                ]),
                Box::new(holds),
            )
        }
        _ => {
            let (one, holds_one) = condition(rng, Filter::new(), false);
            let (two, holds_two) = condition(rng, Filter::new(), false);
            (filter.any([one, two]), Box::new(move |known| holds_one(known) || holds_two(known)))
        }
    }
}

#[test]
fn a_filter_gives_what_a_look_at_every_record_gives() {
    let daemon = small().start();
    let mut rng = Rng::new(20_261_123);
    let (mut appender, mut log) = (Appender::new(&daemon), Vec::new());
    for at in 0..APPENDS {
        let payload = append(&mut rng, appender.next, &mut log);
        appender.payload(&payload);
        if at % 100 == 50 {
            daemon.admin().rotate().expect("rotated");
        }
    }
    let (mut given, mut some) = (0, 0);
    for _ in 0..FILTERS {
        let (mut filter, mut all): (Filter, Vec<Holds>) = (Filter::new(), Vec::new());
        for _ in 0..=rng.below(2) {
            let (more, holds) = condition(&mut rng, filter, true);
            filter = more;
            all.push(holds);
        }
        if rng.below(4) == 0 {
            filter = filter.body_matches("REFUSED|^x", true);
            all.push(Box::new(|known| match &known.record.body {
                Some(AnyValue::String(text)) => text.contains("refused") || text.starts_with('x'),
                Some(AnyValue::Bytes(bytes)) => bytes.windows(7).any(|text| text == b"refused"),
                body => body.is_some(),
            }));
        }
        let expected: Vec<u64> =
            log.iter().filter(|known| all.iter().all(|holds| holds(known))).map(|known| known.offset).collect();
        for transport in ["unix", "grpc"] {
            let got = runtime().block_on(async {
                let builder = Reader::builder(address(&daemon, transport)).filter(filter.clone());
                read_all(builder.open().await.expect("opened"), usize::MAX).await.expect("read")
            });
            let offsets: Vec<u64> = got.records.iter().map(|(offset, _)| *offset).collect();
            assert_eq!(offsets, expected, "{transport}: {filter:?}");
            assert_eq!(got.cursor.expect("a place").offset, appender.next, "the place is behind all");
        }
        given += expected.len();
        some += usize::from(!expected.is_empty());
    }
    assert!(some as u64 > FILTERS / 3 && given < log.len() * FILTERS as usize / 2, "{some} filters gave {given}");
}

/// 64 appends of 128 KiB of which two match: so many bytes cross the socket.
#[test]
fn few_bytes_are_sent_where_few_match() {
    const BODY_BYTES: usize = 120 << 10;
    let daemon = small().start();
    let mut appender = Appender::new(&daemon);
    for at in 0..64 {
        let name = if at % 32 == 5 { "rare" } else { "common" };
        let mut builder = PayloadBuilder::new(&Group::component_named(name)).expect("a group");
        builder.push(&Record::text(1, 9, "x".repeat(BODY_BYTES))).expect("a record");
        appender.payload(&builder.finish());
    }
    let sent = |filter: Option<Filter>| {
        let (frames, bytes) = frames(&daemon, filter);
        let offsets: Vec<u64> = frames
            .iter()
            .filter_map(
                |frame| if let Frame::Records(records) = frame { Some(records.head.first_offset) } else { None },
            )
            .collect();
        let progress = frames.iter().filter(|frame| matches!(frame, Frame::Progress(_))).count();
        (offsets, progress, bytes)
    };
    let (all, none, bytes_of_all) = sent(None);
    assert_eq!((all.len(), none), (64, 0));
    let (rare, progress, bytes) = sent(Some(Filter::new().component("rare")));
    assert_eq!(rare, [5, 37]);
    assert!(progress >= 5, "{progress} reports over 7 MiB");
    let most = 2 * BODY_BYTES + 4096;
    assert!(bytes < most && bytes_of_all > 64 * BODY_BYTES, "{bytes} of {bytes_of_all}");
}

/// The frames of a READ of everything, and their bytes.
fn frames(daemon: &Daemon, filter: Option<Filter>) -> (Vec<Frame>, usize) {
    let mut raw = Raw::unix(&daemon.socket());
    raw.greet(&hello_reader()).expect("WELCOME");
    let read = Read {
        request_id: 5,
        from: ReadFrom::Offset(0),
        follow: false,
        limit: None,
        min_level: AckLevel::Written,
        since: None,
        until: None,
        filter: filter.map(|filter| filter.to_bytes().expect("a filter")),
    };
    raw.send(|buf| read.encode(buf));
    let (mut frames, mut bytes) = (Vec::new(), 0);
    loop {
        let frame = raw.answer();
        let mut buf = bytes::BytesMut::new();
        frame.encode(&mut buf);
        bytes += buf.len();
        let is_end = matches!(frame, Frame::ReadEnd(_));
        frames.push(frame);
        if is_end {
            return (frames, bytes);
        }
    }
}

/// Gaps come whatever the filter is.
#[test]
fn what_is_missing_is_reported_to_who_filters_too() {
    let daemon = small().set("retention.max_bytes", "4MiB").start();
    let mut appender = Appender::new(&daemon);
    let body = "x".repeat(100 << 10);
    (0..80).for_each(|_| appender.text(&body));
    daemon.wait_until("retention has removed some", |status| status.lowest_offset > 0);
    appender.text("needle");
    for transport in ["unix", "grpc"] {
        let all = runtime().block_on(async {
            let needle = Filter::new().body_contains("needle");
            let reader =
                Reader::builder(address(&daemon, transport)).from(Start::Offset(0)).filter(needle).open().await;
            read_all(reader.expect("opened"), usize::MAX).await.expect("read")
        });
        assert_eq!(all.records, [(80, "needle".to_owned())], "{transport}");
        assert!(all.gaps.first().is_some_and(|gap| gap.from == 0 && gap.to > 0), "{transport}: {:?}", all.gaps);
        assert!(all.progress > 0, "{transport}");
    }
}

/// `clactl` shows the same from a daemon, which filters, as from the files, which nobody filters for it.
#[test]
fn clactl_shows_the_same_from_the_daemon_and_from_the_files() {
    let daemon = small().start();
    let mut rng = Rng::new(7);
    let (mut appender, mut log) = (Appender::new(&daemon), Vec::new());
    for _ in 0..200 {
        let payload = append(&mut rng, appender.next, &mut log);
        appender.payload(&payload);
    }
    let (server, dir) = (daemon.address("unix"), daemon.dir().display().to_string());
    let mut lines = 0;
    for flags in [
        &["-p", "err"][..],
        &["-p", "info..warning", "-t", "shop"],
        &["-t", "billing", "-t", "shop*"],
        &["-g", "timeout|refused"],
        &["-g", "\\[\"timeout\"\\]"],
        &["-g", "\\w{60}|Timeout"],
        &["-g", "t", "-p", "warning", "-n", "7"],
        &["-t", "bill", "-r", "-n", "5"],
        &["-t", "nobody", "-n", "3"],
        &["-t", "shop", "-g", "paid", "-r"],
    ] {
        let from = |place: &[&str]| {
            let shown = clactl_ends(0, &[&["query", "-o", "json"], place, flags].concat(), b"").stdout;
            String::from_utf8(shown).expect("text")
        };
        let (served, stored) = (from(&["--server", &server]), from(&["--dir", &dir]));
        assert_eq!(served, stored, "{flags:?}");
        lines += served.lines().count();
    }
    assert!(lines > 100, "{lines}");
    // The cursor is behind what the daemon did not send.
    let shown = clactl_ends(0, &["query", "--server", &server, "-t", "nobody", "--show-cursor"], b"").stdout;
    let shown = String::from_utf8(shown).expect("text");
    assert!(shown.trim().ends_with(&format!(":{}", appender.next)), "{shown}");
}
