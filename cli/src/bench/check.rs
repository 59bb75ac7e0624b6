//! Reading back what was acked.
//!
//! Invariants: a record counts as verified when it is read at exactly the offset that its ack gave, with exactly its
//! bytes, for the first time; whatever else is found under one of our producers' names is reported as a fault.

use std::collections::HashMap;

use clad_client::{Address, Chunk, Event, Reader, Start};
use clad_proto::ProducerId;

use super::body::{Id, filling};
use super::flight::NOT_ACKED;
use super::load::Flown;

/// Result of reading back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Checked {
    /// Acked records that were found as they must be.
    pub(super) verified: u64,
    /// The first thing that was not as it must be.
    pub(super) fault: Option<String>,
}

/// Reads the log from the first acked offset on and looks for every acked record.
pub(super) fn check(address: &Address, flights: &[Flown], records: u32, size: usize) -> anyhow::Result<Checked> {
    let mut ledger = Ledger::new(flights, records, size);
    let Some(from) = ledger.first else { return Ok(Checked::default()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut reader = Reader::builder(address.clone()).name("clactl bench").from(Start::Offset(from)).open().await?;
        while let Some(event) = reader.next().await? {
            match event {
                Event::Records(chunk) => ledger.chunk(&chunk),
                Event::Gap(gap) => ledger.fault(|| format!("offsets {} to {} are missing", gap.from, gap.to - 1)),
                _ => {}
            }
        }
        Ok(ledger.end())
    })
}

/// Acked records, and those that were found.
struct Ledger<'a> {
    flights: &'a [Flown],
    numbers: HashMap<ProducerId, usize>,
    seen: Vec<Vec<u64>>,
    records: u64,
    filling: String,
    first: Option<u64>,
    acked: u64,
    checked: Checked,
}

impl<'a> Ledger<'a> {
    fn new(flights: &'a [Flown], records: u32, size: usize) -> Self {
        let acked = || flights.iter().flat_map(|flight| &flight.offsets).copied().filter(|&offset| offset != NOT_ACKED);
        let records = u64::from(records);
        let words = |flight: &Flown| (flight.offsets.len() * records as usize).div_ceil(64);
        Self {
            flights,
            numbers: flights.iter().enumerate().map(|(number, flight)| (flight.producer, number)).collect(),
            seen: flights.iter().map(|flight| vec![0; words(flight)]).collect(),
            records,
            filling: filling(size),
            first: acked().min(),
            acked: acked().count() as u64 * records,
            checked: Checked::default(),
        }
    }

    fn fault(&mut self, text: impl FnOnce() -> String) {
        self.checked.fault.get_or_insert_with(text);
    }

    fn chunk(&mut self, chunk: &Chunk) {
        let Some(&number) = self.numbers.get(&chunk.producer_id()) else { return };
        for (offset, record) in chunk.records() {
            let id = record.body_bytes().and_then(|body| Id::of_body(body, self.filling.as_bytes()));
            match id {
                Some(id) if usize::from(id.connection) == number => self.found(id, offset),
                _ => self.fault(|| format!("the record at offset {offset} has another body than was sent")),
            }
        }
    }

    fn found(&mut self, id: Id, offset: u64) {
        let connection = usize::from(id.connection);
        let append = usize::try_from(id.record / self.records).unwrap_or(usize::MAX);
        let first = self.flights.get(connection).and_then(|flight| flight.offsets.get(append)).copied();
        match first {
            // Not acked: it may be there.
            Some(NOT_ACKED) => {}
            Some(first) if first + id.record % self.records == offset => {
                let word = self.seen.get_mut(connection).and_then(|seen| seen.get_mut(id.record as usize / 64));
                let bit = 1 << (id.record % 64);
                match word {
                    Some(word) if *word & bit == 0 => {
                        *word |= bit;
                        self.checked.verified += 1;
                    }
                    _ => self.fault(|| format!("the record at offset {offset} came twice")),
                }
            }
            Some(first) => self.fault(|| {
                format!("record {} of connection {connection} is at {offset}, its ack named {first}", id.record)
            }),
            None => self.fault(|| format!("the record at offset {offset} was never sent")),
        }
    }

    fn end(mut self) -> Checked {
        let missing = self.acked - self.checked.verified;
        if missing > 0 {
            self.fault(|| format!("{missing} acked records were not found at their acked offsets"));
        }
        self.checked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flights() -> Vec<Flown> {
        vec![
            Flown { producer: ProducerId::from_bytes([1; 16]), offsets: vec![4, NOT_ACKED, 0] },
            Flown { producer: ProducerId::from_bytes([2; 16]), offsets: vec![2] },
        ]
    }

    fn found(ledger: &mut Ledger<'_>, all: &[(u16, u64, u64)]) {
        for &(connection, record, offset) in all {
            ledger.found(Id { connection, record }, offset);
        }
    }

    #[test]
    fn every_acked_record_at_its_offset_once() {
        let flights = flights();
        let mut ledger = Ledger::new(&flights, 2, 32);
        assert_eq!((ledger.first, ledger.acked), (Some(0), 6));
        found(&mut ledger, &[(0, 4, 0), (0, 5, 1), (1, 0, 2), (1, 1, 3), (0, 0, 4), (0, 1, 5), (0, 2, 77)]);
        assert_eq!(ledger.end(), Checked { verified: 6, fault: None });
    }

    #[test]
    fn faults() {
        let flights = flights();
        for (all, fault) in [
            (&[(0, 4, 0)][..], "5 acked records were not found at their acked offsets"),
            (&[(0, 4, 1)], "record 4 of connection 0 is at 1, its ack named 0"),
            (&[(0, 4, 0), (0, 4, 0)], "the record at offset 0 came twice"),
            (&[(1, 2, 9)], "the record at offset 9 was never sent"),
            (&[(7, 0, 9)], "the record at offset 9 was never sent"),
        ] {
            let mut ledger = Ledger::new(&flights, 2, 32);
            found(&mut ledger, all);
            assert_eq!(ledger.end().fault.as_deref(), Some(fault));
        }
    }
}
