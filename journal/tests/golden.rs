//! Golden files: what lies on the disk, made by the code, read by a reader that shares nothing with it, and shown in
//! docs/FORMAT.md.
//!
//! A change that makes this fail changes what lies on disks. With `CLAD_BLESS=1` the files are written again; that is
//! for a new version of the format, not for an old one that came out different.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{env, fs};

use clad_journal::format::batch::{BatchHeader, KIND_COMMIT_MARKER, KIND_DATA, LEN};
use clad_journal::format::checksum::{Seed, plain};
use clad_journal::format::chunk::ChunkHeader;
use clad_journal::format::footer::{Before, Damage, Footer, IndexEntry, ProducerEntry, StoredRange};
use clad_journal::format::meta::{EpochStart, Meta, Proof};
use clad_journal::format::resend::ResendEntry;
use clad_journal::format::segment::{Features, SegmentHeader, VERSION};
use clad_journal::format::{align, segment_name};
use clad_journal::{Append, Journal, JournalConfig, Level, ResendKey};

#[path = "golden/reader.rs"]
mod reader;

/// Only what hangs takes longer.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const BLOCK: u64 = 4096;
const CAPACITY: u64 = 65_536;
const LOG_ID: [u8; 16] = [0xa1; 16];
const BOOT_ID: [u8; 16] = [0xb0; 16];
const EPOCH: u32 = 3;
const T0: i64 = 1_700_000_000_000_000_000;
const BOOT_NS: u64 = 5_000_000_000;
const FIRST: [u8; 16] = [0xb2; 16];
const SECOND: [u8; 16] = [0xc3; 16];
/// Peer metadata, as in docs/PROTOCOL.md: Unix socket, pid 4711 since tick 123456, user and group 1000.
const PEER_META: [u8; 15] = [1, 2, 2, 0xe7, 0x24, 3, 0xc0, 0xc4, 7, 4, 0xe8, 7, 5, 0xe8, 7];
/// TCP from 127.0.0.1:40312.
const NETWORK_PEER_META: [u8; 10] = [1, 1, 32, 6, 127, 0, 0, 1, 0x9d, 0x78];
/// Key of an append without a sequence of its sender's.
const RESEND_KEY: ResendKey = ResendKey { identity: 0x0011_2233_4455_6677, digest: [0xd4; 16] };
/// The payload of the worked example in docs/PROTOCOL.md: the string `hello` and the bytes ff 00 of `bench`.
const HELLO: &str = "1a 00 00 00 01 14 0c 73 65 72 76 69 63 65 2e 6e 61 6d 65 02 05 62 65 6e 63 68 \
    25 00 00 00 09 02 00 00 00 00 2a 36 fe 9c 97 17 00 00 00 00 00 00 00 00 00 00 00 00 05 00 00 00 68 65 6c 6c 6f \
    22 00 00 00 11 03 00 00 01 00 2a 36 fe 9c 97 17 00 00 00 00 00 00 00 00 00 00 00 00 02 00 00 00 ff 00";

// ---- notation -------------------------------------------------------------------------------------------------

/// Sixteen bytes a line; `00 * n` for a long run of zeroes.
fn to_hex(bytes: &[u8]) -> String {
    let (mut text, mut at) = (String::new(), 0);
    while at < bytes.len() {
        let zeroes = bytes[at..].iter().take_while(|b| **b == 0).count();
        if zeroes >= 32 {
            writeln!(text, "00 * {zeroes}").expect("a string takes any text");
            at += zeroes;
            continue;
        }
        let mut end = (at + 16).min(bytes.len());
        if let Some(run) = (at..end).find(|i| bytes[*i..].iter().take_while(|b| **b == 0).count() >= 32) {
            end = run;
        }
        let line: Vec<String> = bytes[at..end].iter().map(|b| format!("{b:02x}")).collect();
        writeln!(text, "{}", line.join(" ")).expect("a string takes any text");
        at = end;
    }
    text
}

fn from_hex(text: &str) -> Vec<u8> {
    let byte = |word: &str| u8::from_str_radix(word, 16).expect("two hex digits");
    let line = |line: &str| match line.split_once('*') {
        Some((of, times)) => vec![byte(of.trim()); times.trim().parse().expect("a number")],
        None => line.split_whitespace().map(byte).collect(),
    };
    text.lines().flat_map(line).collect()
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn file(name: &str) -> Vec<u8> {
    from_hex(&fs::read_to_string(folder().join(format!("{name}.hex"))).expect(name))
}

// ---- what the files are made of -------------------------------------------------------------------------------

/// One segment under way.
struct Making {
    header: SegmentHeader,
    seed: Seed,
    file: Vec<u8>,
    pos: u64,
    previous: u32,
}

impl Making {
    fn new(number: u64, salt: u64) -> Self {
        Self::of_version(VERSION, number, salt)
    }

    fn of_version(version: u16, number: u64, salt: u64) -> Self {
        let header = SegmentHeader {
            version,
            features: Features::default(),
            log_id: LOG_ID,
            number,
            epoch: EPOCH,
            block_size: BLOCK as u32,
            salt,
            boot_id: BOOT_ID,
            created_ns: T0,
            capacity: CAPACITY,
            former: None,
        };
        let mut file = header.encode().to_vec();
        file.resize(BLOCK as usize, 0);
        Self { seed: header.seed(), header, file, pos: BLOCK, previous: 0 }
    }

    fn batch(&mut self, first_offset: u64, count: u32, watermarks: (u64, u64), kind: u8, body: &[u8]) {
        let header = BatchHeader {
            kind,
            codec: 0,
            flags: 0,
            epoch: EPOCH,
            first_offset,
            count,
            stored_len: body.len() as u32,
            plain_len: body.len() as u32,
            previous: self.previous,
            written: watermarks.0,
            durable: watermarks.1,
            append_real_ns: T0 + 9,
            append_boot_ns: BOOT_NS,
            min_time_ns: if count == 0 { 0 } else { T0 },
            max_time_ns: if count == 0 { 0 } else { T0 + 1 },
            body_checksum: BatchHeader::body_checksum(&self.seed, self.pos, body),
        };
        let (bytes, checksum) = header.encode(&self.seed, self.pos);
        self.file.resize(self.pos as usize, 0);
        self.file.extend_from_slice(&bytes);
        self.file.extend_from_slice(body);
        if kind == KIND_DATA {
            self.previous = checksum;
            self.pos = align(self.file.len() as u64);
        }
    }

    fn fresh_block(&mut self) {
        self.pos = self.pos.next_multiple_of(BLOCK);
    }

    fn footer(&self, offsets: (u64, u64), payload_bytes: u64, before: u64) -> Footer {
        Footer {
            segment: self.header.number,
            epoch: EPOCH,
            last_batch_checksum: self.previous,
            first_offset: offsets.0,
            end_offset: offsets.1,
            data_end: self.pos,
            min_time_ns: T0,
            max_time_ns: T0 + 1,
            max_append_ns: T0 + 9,
            payload_bytes,
            owners: vec![(1000, payload_bytes)],
            index: vec![IndexEntry { first_offset: offsets.0, position: BLOCK, min_time_ns: T0, max_time_ns: T0 + 1 }],
            producers: producers(),
            before: Some(Before { number: before, footer_checksum: 0x1111_1111, last_batch_checksum: 0x2222_2222 }),
            ..Footer::default()
        }
    }

    fn seal(mut self, footer: &Footer) -> Vec<u8> {
        let pos = self.pos.next_multiple_of(BLOCK);
        self.file.resize(pos as usize, 0);
        self.file.extend_from_slice(&footer.encode(&self.seed, pos, BLOCK as usize).0);
        self.file
    }

    fn unsealed(mut self) -> Vec<u8> {
        self.file.resize(CAPACITY as usize, 0);
        self.file
    }
}

fn chunk(body: &mut Vec<u8>, producer: [u8; 16], first_sequence: u64, count: u32, peer_meta: &[u8], payload: &[u8]) {
    let header = ChunkHeader {
        flags: 0,
        count,
        payload_checksum: plain(payload),
        producer,
        owner: 1000,
        first_sequence,
        producer_epoch: 1,
    };
    header.encode_into(body, peer_meta, payload);
}

fn hello() -> Vec<u8> {
    from_hex(HELLO)
}

/// A group without any field, and one record that is a string.
fn plain_record(text: &str) -> Vec<u8> {
    let mut p = vec![4, 0, 0, 0];
    p.extend_from_slice(&(32 + text.len() as u32).to_le_bytes());
    p.extend_from_slice(&[9, 2, 0, 0]);
    p.extend_from_slice(&T0.to_le_bytes());
    p.extend_from_slice(&[0; 12]);
    p.extend_from_slice(&(text.len() as u32).to_le_bytes());
    p.extend_from_slice(text.as_bytes());
    p
}

fn one(producer: [u8; 16], sequence: u64, text: &str) -> Vec<u8> {
    let mut body = Vec::new();
    chunk(&mut body, producer, sequence, 1, &[], &plain_record(text));
    body
}

fn first_batch(m: &mut Making) {
    let mut body = Vec::new();
    chunk(&mut body, FIRST, 42, 2, &PEER_META, &hello());
    m.batch(1000, 2, (1000, 1000), KIND_DATA, &body);
}

fn producers() -> Vec<ProducerEntry> {
    let range = |first_sequence, first_offset, count| StoredRange { first_sequence, first_offset, count };
    vec![
        ProducerEntry {
            id: FIRST,
            owner: 1000,
            epoch: 1,
            last_active_ns: T0 + 9,
            appends: vec![range(42, 1000, 3), range(45, 1004, 1)],
            forgotten_below: 42,
        },
        ProducerEntry {
            id: SECOND,
            owner: 1000,
            epoch: 1,
            last_active_ns: T0 + 9,
            appends: vec![range(0, 1003, 1)],
            forgotten_below: 0,
        },
    ]
}

/// Three batches: one append of two records; two appends in the same block; one in a block of its own, because the
/// one before it was still in flight.
fn sealed() -> Vec<u8> {
    let mut m = Making::new(7, 0x0123_4567_89ab_cdef);
    first_batch(&mut m);
    let mut body = Vec::new();
    chunk(&mut body, FIRST, 44, 1, &PEER_META, &plain_record("again"));
    chunk(&mut body, SECOND, 0, 1, &[], &plain_record(""));
    m.batch(1002, 2, (1002, 1002), KIND_DATA, &body);
    m.fresh_block();
    m.batch(1004, 1, (1002, 1002), KIND_DATA, &one(FIRST, 45, "last"));
    let payload = hello().len() + plain_record("again").len() + plain_record("").len() + plain_record("last").len();
    let footer = m.footer((1000, 1005), payload as u64, 6);
    m.seal(&footer)
}

/// One batch, and a commit marker for it, in a segment of format version 1.
fn idle() -> Vec<u8> {
    let mut m = Making::of_version(1, 8, 0xfeed_beef);
    first_batch(&mut m);
    m.batch(1002, 0, (1002, 1002), KIND_COMMIT_MARKER, &[]);
    m.unsealed()
}

/// Two batches; a third that lost its end; a fourth that was in flight with it and is whole.
fn torn() -> Vec<u8> {
    let mut m = Making::new(8, 0xfeed_beef);
    first_batch(&mut m);
    m.batch(1002, 1, (1002, 1002), KIND_DATA, &one(FIRST, 44, "kept"));
    let third = m.pos as usize;
    m.batch(1003, 1, (1003, 1002), KIND_DATA, &one(FIRST, 45, "torn"));
    m.file[third + LEN + 70..].fill(0);
    m.fresh_block();
    m.batch(1004, 1, (1003, 1002), KIND_DATA, &one(FIRST, 46, "behind"));
    m.unsealed()
}

fn resendable_peer_meta() -> Vec<u8> {
    let mut meta = NETWORK_PEER_META.to_vec();
    RESEND_KEY.encode(&mut meta);
    meta
}

/// What recovery in the process makes, of a network peer's record: it repeats the log from 1002 on, where segment 8 failed; 1003 and 1004 are lost.
fn superseding() -> Vec<u8> {
    let mut m = Making::new(9, 0x5eed);
    let mut body = Vec::new();
    chunk(&mut body, FIRST, 44, 1, &resendable_peer_meta(), &plain_record("kept"));
    m.batch(1002, 1, (1002, 1002), KIND_DATA, &body);
    let mut footer = m.footer((1002, 1005), plain_record("kept").len() as u64, 8);
    footer.damage = vec![Damage { from: 1003, to: 1005 }];
    footer.supersedes_from = Some(1002);
    let earlier = ResendKey { digest: [0xe5; 16], ..RESEND_KEY };
    footer.resends = vec![
        ResendEntry { key: earlier, first_offset: 400, count: 100 },
        ResendEntry { key: RESEND_KEY, first_offset: 1002, count: 1 },
    ];
    m.seal(&footer)
}

fn meta(generation: u64, highest_segment: u64) -> Meta {
    Meta {
        generation,
        log_id: LOG_ID,
        clean: false,
        latched: false,
        lowest_segment: 5,
        lowest_offset: 400,
        highest_segment,
        created_ns: T0 - 1_000_000_000,
        least_epoch: 0,
        proof: None,
        lost: Vec::new(),
        epochs: vec![EpochStart { epoch: 1, first_offset: 0 }, EpochStart { epoch: EPOCH, first_offset: 900 }],
    }
}

fn made() -> BTreeMap<&'static str, Vec<u8>> {
    let both = [meta(6, 6).encode(), meta(7, 7).encode()].concat();
    BTreeMap::from([
        ("clad.meta", both),
        ("sealed.clog", sealed()),
        ("idle.clog", idle()),
        ("torn.clog", torn()),
        ("superseding.clog", superseding()),
    ])
}

// ---- the tests ------------------------------------------------------------------------------------------------

#[test]
fn bytes_are_what_they_were() {
    for (name, bytes) in made() {
        if env::var_os("CLAD_BLESS").is_some() {
            fs::write(folder().join(format!("{name}.hex")), to_hex(&bytes)).expect("writable");
        }
        assert!(file(name) == bytes, "{name}: other bytes than in tests/golden/{name}.hex");
    }
}

#[test]
fn the_notation_comes_back() {
    let mut bytes = vec![0; 40];
    bytes.extend_from_slice(&[1, 2, 3]);
    bytes.extend_from_slice(&[0; 31]);
    bytes.push(7);
    bytes.extend_from_slice(&[0; 100]);
    assert_eq!(from_hex(&to_hex(&bytes)), bytes);
}

#[test]
fn a_reader_made_from_the_document_reads_the_meta_file() {
    assert_eq!(reader::crc32c(&[b"123456789"]), 0xE306_9283);
    let mut bytes = file("clad.meta");
    let m = reader::meta(&bytes).unwrap();
    assert_eq!((m.generation, m.log_id, m.clean, m.latched), (7, LOG_ID, false, false));
    assert_eq!((m.lowest_segment, m.lowest_offset, m.highest_segment), (5, 400, Some(7)));
    assert_eq!((m.epochs.as_slice(), m.proof), (&[(1, 0), (3, 900)][..], None));
    let proof = Some(Proof { durable: 1002, written: 1003, boot_id: [8; 16] });
    let lost = vec![Damage { from: 700, to: 702 }, Damage { from: 1001, to: 1002 }];
    for (proof, lost) in [(proof, Vec::new()), (None, lost.clone()), (proof, lost)] {
        let reported_lost = lost.iter().map(|d| (d.from, d.to)).collect::<Vec<_>>();
        let read = reader::meta(&Meta { proof, lost, ..meta(8, 7) }.encode()).unwrap();
        let proof = proof.map(|p| (p.durable, p.written, p.boot_id));
        assert_eq!((&read.epochs, read.lost, read.proof), (&m.epochs, reported_lost, proof));
    }
    bytes[32 * 1024 + 60] ^= 1;
    assert_eq!(reader::meta(&bytes).unwrap().generation, 6, "the other slot counts when the newer is torn");
    bytes[60] ^= 1;
    assert!(reader::meta(&bytes).is_err());
}

#[test]
fn a_reader_made_from_the_document_reads_the_sealed_segment() {
    let bytes = file("sealed.clog");
    let s = reader::segment(&bytes).unwrap();
    let h = &s.header;
    assert_eq!((h.seed.segment, h.block, h.epoch, h.boot_id, h.capacity), (7, 4096, EPOCH, BOOT_ID, CAPACITY));
    assert_eq!((h.seed.salt, h.seed.log_id, h.created_ns), (0x0123_4567_89ab_cdef, LOG_ID, T0));
    let f = s.footer.as_ref().expect("it is sealed");
    assert_eq!((f.segment, f.epoch, f.offsets, f.payload_bytes), (7, EPOCH, (1000, 1005), 97 + 41 + 36 + 40));
    assert_eq!((f.position, f.times, f.max_append_ns), (12_288, (T0, T0 + 1), T0 + 9));
    assert_eq!(f.index, [(1000, 4096, T0, T0 + 1)]);
    assert_eq!(f.owners, [(1000, f.payload_bytes)]);
    assert_eq!((f.before, f.supersedes_from, f.damage.len()), (Some((6, 0x1111_1111, 0x2222_2222)), None, 0));
    assert_eq!(f.producers[0].ranges, [(42, 1000, 3), (45, 1004, 1)]);
    assert_eq!((f.producers[1].id, f.producers[1].owner, f.producers[1].epoch), (SECOND, 1000, 1));
    assert_eq!(s.bad, []);

    let places: Vec<_> = s.batches.iter().map(|b| (b.position, b.first_offset, b.count)).collect();
    assert_eq!(places, [(4096, 1000, 2), (4416, 1002, 2), (8192, 1004, 1)]);
    let chain: Vec<_> = s.batches.iter().map(|b| b.previous).collect();
    assert_eq!(chain, [0, s.batches[0].checksum, s.batches[1].checksum]);
    assert_eq!(f.last_batch, s.batches[2].checksum);
    assert_eq!((s.batches[2].written, s.batches[2].durable), (1002, 1002), "observed before it was submitted");
    assert_eq!((s.batches[0].append_real_ns, s.batches[0].append_boot_ns), (T0 + 9, BOOT_NS));

    let chunks: Vec<_> = s.batches.iter().flat_map(|b| &b.chunks).collect();
    let listed: Vec<_> = chunks.iter().map(|c| (c.first_offset, c.count, c.producer[0], c.first_sequence)).collect();
    assert_eq!(listed, [(1000, 2, 0xb2, 42), (1002, 1, 0xb2, 44), (1003, 1, 0xc3, 0), (1004, 1, 0xb2, 45)]);
    assert_eq!((chunks[0].payload.clone(), chunks[0].payload_checksum), (hello(), 0xbebd_d8b2));
    assert_eq!((chunks[0].peer_meta.clone(), chunks[2].peer_meta.len()), (PEER_META.to_vec(), 0));
    for c in chunks {
        assert_eq!(reader::crc32c(&[&c.payload]), c.payload_checksum);
        assert_eq!((c.owner, c.producer_epoch), (1000, 1));
    }
}

#[test]
fn a_reader_made_from_the_document_returns_what_may_be_believed() {
    let before = reader::Around { start: 1000, ..reader::Around::default() };
    let same_boot = reader::Around { same_boot: true, ..before };
    let latched = reader::Around { latched: true, ..same_boot };
    // Idle: the commit marker proves what lies before it, and is itself nothing of the log.
    let idle = reader::segment(&file("idle.clog")).unwrap();
    assert!(idle.footer.is_none());
    assert_eq!(
        idle.batches.iter().map(|b| (b.kind, b.count, b.durable)).collect::<Vec<_>>(),
        [(0, 2, 1000), (2, 0, 1002)]
    );
    assert_eq!(reader::believe(&idle, before), (vec![0], 1002, vec![]));

    // Torn: the third is cut off, and the whole one behind it with it.
    let bytes = file("torn.clog");
    let torn = reader::segment(&bytes).unwrap();
    assert_eq!(torn.batches.iter().map(|b| b.first_offset).collect::<Vec<_>>(), [1000, 1002, 1004]);
    assert_eq!(torn.bad.len(), 1);
    assert_eq!(reader::believe(&torn, before), (vec![0, 1], 1003, vec![]));
    // Under the boot that wrote it, the kernel had completed everything below 1003: nothing changes here.
    assert_eq!(reader::believe(&torn, same_boot), (vec![0, 1], 1003, vec![]));

    // The second, which the fourth says was written and the third says nothing of, fails as well.
    let mut damaged = bytes;
    damaged[4416 + 100] ^= 1;
    let damaged = reader::segment(&damaged).unwrap();
    assert_eq!(reader::believe(&damaged, before), (vec![0], 1002, vec![]), "never confirmed as durable");
    assert_eq!(reader::believe(&damaged, same_boot), (vec![0], 1003, vec![(1002, 1003)]), "damage");
    assert_eq!(reader::believe(&damaged, latched), (vec![0], 1002, vec![]), "a failure was latched");
    // A start that was cut had found it proven, by a batch that it has written over.
    for (proof, latched, lost) in [((1003, 0), true, true), ((0, 1003), false, true), ((0, 1003), true, false)] {
        let proven = reader::Around { proof, latched, ..before };
        let expected = if lost { (vec![0], 1003, vec![(1002, 1003)]) } else { (vec![0], 1002, vec![]) };
        assert_eq!(reader::believe(&damaged, proven), expected, "{proven:?}");
    }

    // What was reported as lost stays so, also where it can be read.
    let around = reader::Around { lost: &[(1001, 1002)], epochs: &[(EPOCH, 1002)], ..before };
    assert_eq!(reader::believe(&torn, around), (vec![1], 1003, vec![(1000, 1002)]));

    // An epoch behind the segment's, and one that began behind what can be found.
    let later = reader::Around { epochs: &[(EPOCH, 1000), (EPOCH + 2, 1002)], ..before };
    assert_eq!(reader::believe(&torn, later), (vec![0], 1002, vec![]), "what was cut off then stays off");
    let lost = reader::Around { epochs: &[(EPOCH, 1004)], ..before };
    assert_eq!(
        reader::believe(&idle, lost),
        (vec![0], 1004, vec![(1002, 1004)]),
        "what the epoch began behind is damage"
    );

    let s = reader::segment(&file("superseding.clog")).unwrap();
    let peer_meta = &s.batches[0].chunks[0].peer_meta;
    assert_eq!(peer_meta[..10], NETWORK_PEER_META, "the address of a network peer");
    assert_eq!(peer_meta[10..20], [34, 24, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0], "its resend key");
    assert_eq!(peer_meta[20..], [0xd4; 16]);
    let f = s.footer.expect("it is sealed");
    assert_eq!((f.supersedes_from, f.offsets, f.damage), (Some(1002), (1002, 1005), vec![(1003, 1005)]));
    let resends: Vec<_> = f.resends.iter().map(|r| (r.identity, r.digest[0], r.first_offset, r.count)).collect();
    assert_eq!(resends, [(0x0011_2233_4455_6677, 0xe5, 400, 100), (0x0011_2233_4455_6677, 0xd4, 1002, 1)]);
}

#[test]
fn what_is_newer_is_refused_and_what_is_unknown_is_skipped() {
    let mut bytes = file("sealed.clog");
    bytes[8] = 3;
    assert_eq!(reader::segment(&bytes).unwrap_err(), "version 3");
    let mut m = Making::new(8, 1);
    first_batch(&mut m);
    m.batch(1002, 0, (1002, 1002), 77, &[1, 2, 3]);
    let s = reader::segment(&m.unsealed()).unwrap();
    assert_eq!((s.batches[1].kind, s.bad.len()), (77, 0));
    assert_eq!(reader::believe(&s, reader::Around { start: 1000, ..reader::Around::default() }).0, [0]);
    let mut m = Making::new(8, 1);
    m.header.features.incompatible = 4;
    assert!(reader::segment(&m.header.encode()).unwrap_err().contains("features"));
}

/// The files of a log that was really written, with the reader that knows only the document.
#[test]
fn a_reader_made_from_the_document_reads_what_the_journal_writes() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let config =
        JournalConfig { segment_bytes: 1 << 20, max_append_bytes: 64 << 10, reserve_free: 0, ..Default::default() };
    let journal = Journal::open_dir(dir.path(), config, std::sync::Arc::new(|_| {})).unwrap();
    let began = Instant::now();
    for i in 0..2000u64 {
        let payload = plain_record(&"x".repeat((i % 300) as usize));
        let append = Append {
            producer: FIRST,
            owner: 1000,
            producer_epoch: 1,
            first_sequence: i,
            count: 1,
            gap: false,
            level: if i % 2 == 0 { Level::Durable } else { Level::Written },
            min_time_ns: T0,
            max_time_ns: T0 + i as i64,
            peer_meta: &PEER_META,
            payload: &payload,
            payload_checksum: plain(&payload),
            permit: None,
        };
        append.submit(&journal).unwrap();
        while i % 100 == 0 && journal.watermarks().durable <= i {
            assert!(began.elapsed() < TEST_TIMEOUT);
            std::thread::yield_now();
        }
        if i == 1000 {
            journal.rotate().blocking_recv().unwrap().unwrap();
        }
    }
    assert!(journal.close(TEST_TIMEOUT));

    let meta = reader::meta(&fs::read(dir.path().join("clad.meta")).unwrap()).unwrap();
    assert!(meta.clean && !meta.latched && meta.lowest_segment == 0);
    let (mut next, mut before) = (0, None);
    for number in meta.lowest_segment..=meta.highest_segment.unwrap() {
        let s = reader::segment(&fs::read(dir.path().join(segment_name(number))).unwrap()).unwrap();
        let f = s.footer.as_ref().expect("a clean end seals");
        assert_eq!((s.header.seed.segment, s.header.seed.log_id, f.segment), (number, meta.log_id, number));
        assert_eq!((f.offsets.0, f.before, s.bad.len()), (next, before, 0));
        let mut chain = 0;
        for b in s.batches.iter().filter(|b| b.kind == 0) {
            assert_eq!((b.first_offset, b.previous), (next, chain));
            assert!(b.durable <= b.written && b.written <= b.first_offset);
            chain = b.checksum;
            for c in &b.chunks {
                assert_eq!((c.first_offset, c.first_sequence, c.count), (next, next, 1));
                assert_eq!(c.payload, plain_record(&"x".repeat((next % 300) as usize)));
                assert_eq!(reader::crc32c(&[&c.payload]), c.payload_checksum);
                next += 1;
            }
        }
        assert_eq!((f.offsets.1, f.last_batch), (next, chain));
        assert!(f.index.iter().all(|e| s.batches.iter().any(|b| (b.first_offset, b.position as u64) == (e.0, e.1))));
        assert_eq!(f.producers[0].ranges, [(0, 0, next as u32)]);
        before = Some((number, f.head_checksum, f.last_batch));
    }
    assert_eq!(next, 2000);
}

// ---- the document ---------------------------------------------------------------------------------------------

fn document() -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/FORMAT.md");
    fs::read_to_string(path).expect("docs/FORMAT.md is there")
}

/// The blocks of the document that begin with "```hex", with the words after it.
fn blocks(text: &str) -> Vec<(Vec<&str>, Vec<u8>)> {
    text.split("```hex ")
        .skip(1)
        .map(|block| {
            let (words, rest) = block.split_once('\n').expect("words, then bytes");
            let (bytes, _) = rest.split_once("```").expect("the block ends");
            let bytes: Vec<&str> = bytes.lines().map(|line| line.split('#').next().unwrap_or_default()).collect();
            (words.split_whitespace().collect(), from_hex(&bytes.join("\n")))
        })
        .collect()
}

#[test]
fn the_document_shows_these_bytes() {
    let text = document();
    let mut shown = 0;
    for (words, bytes) in blocks(&text) {
        match words[..] {
            ["seed", name, position] => {
                let file = file(name);
                let seed = reader::segment(&file).unwrap().header.seed;
                assert_eq!(bytes, seed.prefix(position.parse().unwrap()), "seed of {name} at {position}");
            }
            [name, position] => {
                let at: usize = position.parse().unwrap();
                assert_eq!(to_hex(&bytes), to_hex(&file(name)[at..at + bytes.len()]), "{name} at {position}");
            }
            _ => panic!("a block of bytes says which file and where: {words:?}"),
        }
        shown += 1;
    }
    assert!(shown >= 8, "the document has a worked example, {shown} blocks");
}

/// "The checksum of ... is 0x...": the document's worked checksum is that of its own bytes.
#[test]
fn the_worked_checksum_is_right() {
    let text = document();
    let all = blocks(&text);
    let find = |words: &[&str]| &all.iter().find(|b| b.0 == words).expect("the block is there").1;
    let prefix = find(&["seed", "sealed.clog", "4096"]);
    let header = find(&["sealed.clog", "4096"]);
    let sum = reader::crc32c(&[prefix, &header[..92]]);
    assert_eq!(header[92..96], sum.to_le_bytes());
    assert!(text.contains(&format!("**0x{sum:08X}**")), "the document says 0x{sum:08X}");
}
