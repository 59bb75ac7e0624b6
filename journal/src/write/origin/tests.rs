use super::*;
use crate::format::chunk::FLAG_FORWARDED;
use crate::format::origin::StreamName;

const OWNER: u64 = 7;
const PRODUCER: ProducerId = [4; 16];

fn origin() -> Origin {
    Origin { source: [9; 16], stream: StreamName::new(b"main").expect("a name") }
}

fn header(first: u64, count: u32) -> ChunkHeader {
    ChunkHeader {
        flags: FLAG_FORWARDED,
        count,
        payload_checksum: first as u32 ^ 0xAAAA,
        producer: PRODUCER,
        owner: OWNER,
        first_sequence: first,
        producer_epoch: 3,
    }
}

fn forward(previous: u64, begins: bool) -> Forward {
    Forward { origin: origin(), previous, begins }
}

fn empty() -> OriginTable {
    OriginTable::new(4, 64 << 20)
}

/// Ten records in each append, the first at source offset 100 and offset 1000.
fn with(appends: u64, settled: u64) -> OriginTable {
    let mut table = empty();
    for at in 0..appends {
        let (first, previous) = (100 + 10 * at, 100 + 10 * at);
        let forward = forward(previous, at == 0);
        assert_eq!(table.check(&header(first, 10), &forward), Ok(at == 0));
        table.store(&header(first, 10), &forward, 1000 + 100 * at, settled);
    }
    table
}

fn only(table: &OriginTable) -> OriginEntry {
    table.get(OWNER, &PRODUCER).expect("it is known")
}

#[test]
fn only_what_follows_is_taken() {
    let table = with(3, 0);
    assert_eq!(only(&table).last.end(), 130);
    let check = |first, count, previous, begins| table.check(&header(first, count), &forward(previous, begins));
    let gap = Err(AppendError::Gap { expected: 130 });
    assert_eq!(check(130, 5, 130, false), Ok(false));
    assert_eq!(check(140, 5, 130, false), Ok(false), "with a skip that its forwarder has stated");
    assert_eq!(check(140, 5, 140, false), gap, "what lies between was refused, or is on another way");
    assert_eq!(check(120, 10, 120, false), gap, "the last once more: nobody calls it stored");
    assert_eq!(check(110, 10, 110, false), gap);
    assert_eq!(check(110, 10, 130, false), gap, "it ends where it should begin");
    assert_eq!(check(130, 5, 130, true), gap, "it does not begin");
    assert_eq!(check(100, 10, 100, true), gap);
}

#[test]
fn another_history_is_named_with_both_sides() {
    let table = with(3, 0);
    let parted = |header: ChunkHeader| match table.check(&header, &forward(header.first_sequence, false)) {
        Err(AppendError::Parted(parting)) => parting.to_string(),
        other => panic!("{other:?}"),
    };
    let text = parted(ChunkHeader { payload_checksum: 5, ..header(120, 10) });
    let both = "the last append here has source epoch 3, source offsets 120 to 130, CRC 0000aad2; what was sent has source \
                epoch 3, source offsets 120 to 130, CRC 00000005";
    assert!(text.contains(both), "{text}");
    let text = parted(ChunkHeader { producer_epoch: 2, ..header(130, 10) });
    assert!(text.contains("sent has source epoch 2, source offsets 130 to 140"), "{text}");
    parted(header(120, 9));
    let newer = ChunkHeader { producer_epoch: 4, ..header(130, 10) };
    assert_eq!(table.check(&newer, &forward(130, false)), Ok(false));
}

#[test]
fn an_unknown_origin_begins_and_takes_a_place() {
    let mut table = empty();
    assert_eq!(table.check(&header(50, 1), &forward(50, false)), Err(AppendError::UnknownOrigin));
    for owner in 0..4 {
        let header = ChunkHeader { owner, ..header(50, 1) };
        assert_eq!(table.check(&header, &forward(50, true)), Ok(true));
        table.store(&header, &forward(50, true), owner, 0);
    }
    let full = Err(AppendError::TooManyOrigins { limit: 4 });
    assert_eq!(table.check(&ChunkHeader { owner: 9, ..header(50, 1) }, &forward(50, true)), full);
    let known = ChunkHeader { owner: 3, ..header(51, 1) };
    assert_eq!(table.check(&known, &forward(51, false)), Ok(false), "who is there goes on");
    table.set_max(1);
    assert_eq!((table.len(), table.check(&known, &forward(51, false))), (4, Ok(false)), "none is forgotten");
    assert!(table.forget(2, &PRODUCER) && !table.forget(2, &PRODUCER));
    assert_eq!(OriginTable::new(1024, 64 << 10).fitting, 21, "small segments have room for few");
}

#[test]
fn a_footer_is_a_cut_and_comes_back() {
    let table = with(3, 0);
    for (end, last) in [(1010, 110), (1100, 110), (1110, 120), (1209, 120), (1210, 130), (u64::MAX, 130)] {
        let entries = table.snapshot(end);
        assert_eq!((entries.len(), entries[0].last.end(), entries[0].is_lost), (1, last, false), "at {end}");
        let mut again = empty();
        again.load(&entries);
        assert_eq!(again.snapshot(u64::MAX), entries);
    }
    assert!(table.snapshot(1000).is_empty(), "it began behind that");
}

#[test]
fn what_was_lost_is_expected_again() {
    for (from, end) in [(1200, 120), (1205, 120), (1100, 110), (1000, 100), (0, 100)] {
        let mut table = with(3, 0);
        table.lose(from, 5000);
        let now = only(&table);
        assert_eq!((now.last.end(), now.is_lost), (end, false), "from {from}");
        assert_eq!(table.check(&header(end, 10), &forward(end, false)), Ok(false));
        table.store(&header(end, 10), &forward(end, false), 6000, 0);
        assert_eq!(only(&table).last.end(), end + 10);
    }
    let mut table = with(3, 0);
    table.lose(1100, 1110);
    assert_eq!(only(&table).last.end(), 130, "a loss before what is there is one of the log alone");
    table.lose(1210, 5000);
    assert_eq!(only(&table).last.end(), 130, "the end itself was not lost");
}

#[test]
fn where_it_does_not_know_from_where_on_it_takes_nothing() {
    let parted = |table: &OriginTable| {
        let checked = table.check(&header(130, 10), &forward(130, false));
        matches!(checked, Err(AppendError::Parted(parting)) if parting.is_lost)
    };
    // Only the last is remembered of what is durable; that one is lost alone, and then with others.
    let settled = with(3, 5000);
    let mut one = settled.clone();
    one.lose(1150, 5000);
    assert_eq!((only(&one).last.end(), only(&one).is_lost), (120, false));
    let mut all = settled.clone();
    all.lose(1100, 5000);
    assert!(parted(&all) && all.snapshot(5000)[0].is_lost);
    let mut loaded = empty();
    loaded.load(&settled.snapshot(1210));
    loaded.lose(1200, 5000);
    assert!(parted(&loaded));
    let entry = settled.snapshot(1050);
    assert!(entry[0].is_lost, "a footer below what was trimmed says so");
}

#[test]
fn appends_that_are_read_back_make_the_same_table() {
    let mut peer_meta = vec![1, 12];
    origin().encode(&[[1; 16]], &mut peer_meta);
    let mut again = empty();
    for at in 0..3 {
        again.replay(&header(100 + 10 * at, 10), &peer_meta, 1000 + 100 * at);
    }
    assert_eq!(again.snapshot(u64::MAX), with(3, 0).snapshot(u64::MAX));
    again.replay(&header(150, 5), &peer_meta, 2000);
    assert_eq!(only(&again).last.end(), 155, "a skip, or a loss before it");
    again.replay(&header(0, 5), &peer_meta, 2005);
    assert_eq!((only(&again).last.end(), again.known[&(OWNER, PRODUCER)].born_at), (5, 2005), "a later life");
    again.replay(&header(9, 5), b"", 3000);
    assert_eq!(only(&again).last.end(), 5, "without its name it is nobody's");
}

#[test]
fn a_tombstone_ends_a_life_and_no_later_one() {
    let mut table = with(3, 0);
    let other = ChunkHeader { owner: 8, ..header(5, 1) };
    table.store(&other, &forward(5, true), 1300, 0);
    let stone = origin::tombstone(OWNER, &PRODUCER, 1301);
    table.bury(&Tombstone { below: 1000, ..stone });
    assert_eq!(table.len(), 2, "it began there");
    table.bury(&stone);
    assert!(table.get(OWNER, &PRODUCER).is_none() && table.get(8, &PRODUCER).is_some(), "another owner's stays");
    table.store(&header(0, 1), &forward(0, true), 1301, 0);
    table.bury(&stone);
    assert!(table.get(OWNER, &PRODUCER).is_some());
    let mut copy = table.clone();
    table.forget(OWNER, &PRODUCER);
    copy.catch_up(&table);
    assert_eq!(copy.len(), 1, "what was dropped meanwhile stays dropped");
}
