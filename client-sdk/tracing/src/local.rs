//! Memory that a thread uses for each record again, and the making of a record in it.
//!
//! Invariants: a thread makes one record at a time; foreign code that runs meanwhile (a `Debug`, an error's `Display`)
//! finds the memory taken. So nothing is logged while something is logged.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use clad_client::{Batch, Body, Call, DropReason, EncodeError, KvWriter, Producer, RecordHead};
use tracing::{Metadata, callsite::Identifier};

use crate::callsite::Site;
use crate::text::cut;

/// Producers whose batches a thread holds.
const BATCHES_MAX: usize = 4;
/// Texts, and records, that a thread holds memory for; the memory of longer ones is released.
const TEXT_BYTES_MAX: usize = 64 * 1024;
/// The longest text of a record that was too long as it was.
const CUT_TEXT_BYTES: usize = 32 * 1024;

thread_local! {
    static LOCAL: RefCell<Local> = RefCell::default();
}

/// See the module.
#[derive(Default)]
pub(crate) struct Local {
    sites: HashMap<Identifier, Rc<Site>, BuildHasherDefault<ByPlace>>,
    /// With the id of the producer.
    batches: Vec<(u128, Batch)>,
    /// The body.
    pub(crate) body: String,
    /// The value that is being written.
    pub(crate) value: String,
}

/// Hashes the one address that a callsite is known by. Nobody else chooses it, so nothing as dear as SipHash is needed.
#[derive(Default)]
struct ByPlace(u64);

impl Hasher for ByPlace {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize((*byte).into()));
    }

    fn write_usize(&mut self, place: usize) {
        // Fibonacci hashing: places are multiples of 8, and the map looks at the top bits and at the lowest.
        self.0 = (self.0.rotate_left(5) ^ place as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// Calls `f` with the thread's memory; nothing if the thread is using it just now.
pub(crate) fn with_local<T>(f: impl FnOnce(&mut Local) -> T) -> Option<T> {
    let mut f = Some(f);
    let found = LOCAL.try_with(|local| {
        let mut local = local.try_borrow_mut().ok()?;
        f.take().map(|f| f(&mut local))
    });
    match found {
        Ok(found) => found,
        // The thread ends, and its memory is gone.
        Err(_) => f.map(|f| f(&mut Local::default())),
    }
}

/// Parts of a record besides its attributes.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) severity: i32,
    pub(crate) severity_text: &'a str,
    pub(crate) event_name: &'a str,
    pub(crate) has_body: bool,
    /// Trace id and span id.
    pub(crate) ids: Option<([u8; 16], [u8; 8])>,
}

/// Extent to which a record is written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Extent {
    /// All of it.
    Whole,
    /// Texts up to this length.
    Texts(usize),
    /// The same, and neither fields nor spans.
    Bare(usize),
}

impl Extent {
    const ALL: [Self; 3] = [Self::Whole, Self::Texts(CUT_TEXT_BYTES), Self::Bare(CUT_TEXT_BYTES)];

    /// As much of a text as is written.
    pub(crate) fn of(self, text: &str) -> &str {
        match self {
            Self::Whole => text,
            Self::Texts(max) | Self::Bare(max) => cut(text, max),
        }
    }

    /// As much of bytes as is written.
    pub(crate) fn of_bytes(self, bytes: &[u8]) -> &[u8] {
        match self {
            Self::Whole => bytes,
            Self::Texts(max) | Self::Bare(max) => bytes.get(..max).unwrap_or(bytes),
        }
    }
}

impl Local {
    /// The parts that are the same at each event of a callsite.
    pub(crate) fn site(&mut self, metadata: &'static Metadata<'static>) -> Rc<Site> {
        self.sites.entry(metadata.callsite()).or_insert_with(|| Rc::new(Site::new(metadata))).clone()
    }

    /// Makes a record and hands it over. The body is in `body`; `attributes` may be called again, for less.
    pub(crate) fn send(
        &mut self,
        producer: &Producer,
        call: &Call,
        head: Head<'_>,
        mut attributes: impl FnMut(&mut KvWriter<'_>, &mut String, Extent),
    ) {
        let (mut is_long, batch) = (false, batch_of(&mut self.batches, producer));
        let made = Extent::ALL.into_iter().find_map(|extent| {
            let attributes = |pairs: &mut KvWriter<'_>| attributes(pairs, &mut self.value, extent);
            match encode(batch, head, &self.body, attributes, extent) {
                Err(EncodeError::RecordTooLarge { .. }) => {
                    is_long = true;
                    None
                }
                result => Some(result),
            }
        });
        is_long |= batch.len_bytes() > TEXT_BYTES_MAX;
        match made {
            // An error is counted where it is found.
            Some(Ok(())) => drop(producer.post_batch(batch, call)),
            _ => producer.count_dropped(DropReason::TooLarge),
        }
        if is_long {
            let id = id_of(producer); // its memory was for this record
            self.batches.retain(|(of, _)| *of != id);
        }
        for text in [&mut self.body, &mut self.value] {
            text.clear();
            if text.capacity() > TEXT_BYTES_MAX {
                *text = String::new();
            }
        }
    }
}

fn id_of(producer: &Producer) -> u128 {
    u128::from_le_bytes(*producer.id().as_bytes())
}

/// The thread's batch of a producer, which is empty.
fn batch_of<'a>(batches: &'a mut Vec<(u128, Batch)>, producer: &Producer) -> &'a mut Batch {
    let id = id_of(producer);
    let at = batches.iter().position(|(of, _)| *of == id).unwrap_or_else(|| {
        if batches.len() >= BATCHES_MAX {
            batches.remove(0); // of a producer that is gone, perhaps
        }
        batches.push((id, producer.batch()));
        batches.len() - 1
    });
    let batch = &mut batches[at].1;
    batch.clear(); // a call that panicked may have left its record
    batch
}

fn encode(
    batch: &mut Batch,
    head: Head<'_>,
    body: &str,
    attributes: impl FnOnce(&mut KvWriter<'_>),
    extent: Extent,
) -> Result<(), EncodeError> {
    let now = unix_nanos();
    let body = if head.has_body { Body::Text(extent.of(body)) } else { Body::Absent };
    let fixed = RecordHead {
        time_unix_nano: now,
        observed_time_unix_nano: now,
        severity_number: head.severity,
        ..RecordHead::default()
    };
    let mut record = batch.builder().record(fixed, body);
    record.severity_text(head.severity_text).attributes(|pairs| {
        attributes(pairs);
        if extent != Extent::Whole {
            pairs.entry("log.truncated").boolean(true);
        }
    });
    if let Some((trace, span)) = &head.ids {
        record.trace_id(trace).span_id(span);
    }
    record.event_name(head.event_name);
    record.commit()
}

fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn producer() -> clad_client::blocking::Producer {
        let address = clad_client::Address::unix("/nobody/clad.sock");
        clad_client::blocking::Producer::start(Producer::builder(address)).expect("it starts")
    }

    #[test]
    fn the_memory_of_a_long_record_is_released() {
        let producer = producer();
        let mut local = Local::default();
        let head = Head { severity: 9, severity_text: "INFO", event_name: "", has_body: true, ids: None };
        for (bytes, held) in [(10, 1), (1 << 20, 0), (10, 1), (3 << 20, 0)] {
            local.body = "x".repeat(bytes);
            local.send(&producer, &Call::new(), head, |_, _, _| ());
            assert_eq!(local.batches.len(), held, "a body of {bytes} bytes");
            assert!(local.body.capacity() <= TEXT_BYTES_MAX);
        }
    }

    #[test]
    fn a_batch_is_empty_after_a_call_that_panicked() {
        let producer = producer();
        let mut batches = Vec::new();
        let left = batch_of(&mut batches, &producer).push(&clad_client::Record::default());
        assert_eq!((left, batches.len()), (Ok(()), 1));
        assert!(batch_of(&mut batches, &producer).is_empty());
        assert_eq!(batches.len(), 1);
    }
}
