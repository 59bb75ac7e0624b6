//! The journal's file writer beside `std::io::BufWriter`, in chunks of several sizes, in turn.

use anyhow::Result;

use crate::bulk::{Contender, Work};
use crate::place::Place;
use crate::results::{self, Results};
use crate::writers::Limit;

/// The two that a program would use without the file writer.
const STANDARD: [Contender; 2] = [Contender::Bufwriter8k, Contender::Bufwriter2m];

/// Runs all of it: every contender in every round.
///
/// # Errors
/// A run failed.
pub fn run(place: &Place, rounds: u32, works: &[Work]) -> Result<Results> {
    let mut results = Results::new("file_writer", place, rounds, Limit::ops(1));
    for work in works {
        let mut outcomes = vec![Vec::new(); Contender::ALL.len()];
        for _ in 0..rounds {
            for (by, outcomes) in Contender::ALL.into_iter().zip(&mut outcomes) {
                outcomes.push(work.run(by, place.path())?.checked()?);
            }
        }
        for (by, runs) in Contender::ALL.into_iter().zip(&outcomes) {
            let chunk = work.chunk.to_string();
            let row = results.add(&[("writer", by.name()), ("chunk", &chunk)], runs);
            for standard in STANDARD {
                let at = Contender::ALL.iter().position(|one| *one == standard);
                let beside = at.map_or(&[][..], |at| &outcomes[at]);
                row.beside.insert(standard.name().to_owned(), results::ratio(runs, beside));
            }
        }
    }
    Ok(results)
}
