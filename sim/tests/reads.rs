//! What a start reads, counted.
//!
//! Invariants: after an unclean end the last segment is gone through a fixed number of times, in large pieces, however
//! many batches are in it. The passes are the scan, the quarantine, the footer's index and producers, and what is written
//! again.

#![allow(dead_code)] // of the scenes, the stage alone

mod scenes;

use scenes::Stage;

const SEGMENT: u64 = 2 << 20;
const SCAN_PASSES_MAX: u64 = 4;
/// Bytes of one read of a scan.
const PIECE: u64 = 256 << 10;
/// Headers, footers, `clad.meta`, and the same for a prepared segment.
const OTHER_READS_MAX: u64 = 40;

#[test]
fn a_start_goes_through_the_last_segment_a_few_times_however_many_batches_it_holds() {
    let mut costs = Vec::new();
    for batches in [10, 5000] {
        let mut stage = Stage::new();
        stage.die();
        stage.config.segment_bytes = SEGMENT;
        stage.start();
        for _ in 0..batches {
            stage.append(16, None);
            stage.run();
        }
        stage.die();
        let before = stage.disk.counters();
        stage.start();
        let (after, report) = (stage.disk.counters(), stage.journal().report().clone());
        assert_eq!((report.scanned, report.next_offset), (1, batches), "{report}");
        costs.push((after.reads - before.reads, after.bytes_read - before.bytes_read));
    }
    let most =
        (SCAN_PASSES_MAX * SEGMENT / PIECE + OTHER_READS_MAX, SCAN_PASSES_MAX * SEGMENT + OTHER_READS_MAX * PIECE / 4);
    for (reads, bytes) in &costs {
        assert!(*reads <= most.0 && *bytes <= most.1, "reads and bytes {costs:?}, at most {most:?}");
    }
}
