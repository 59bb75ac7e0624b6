//! From what was found and measured to settings and warnings.
//!
//! | found | set |
//! |---|---|
//! | `durable` is out of reach here | `fire_and_forget`: nothing above `written` is promised anyway |
//! | ext4 or xfs, every device down to the last says write through, and `sync_file_range` is 1.2 times as fast as the best single synced write | `sync_file_range` |
//! | anything else | `group_commit` |
//! | io_uring is permitted and its best series is no slower than that of the threads | `uring`, else `blocking` |
//! | the fewest in flight that reach 90 % of the best of that series | `in_flight` |

use clad_journal::io::device::{DurabilityClass, Obstacle, Substrate};
use clad_journal::io::probe::{Space, Uring, Way};

use super::measure::Measured;
use crate::format::human::count;

/// `sync_file_range` must be so many times as fast before it is worth its conditions.
const SYNC_RANGE_SPEEDUP_MIN: f64 = 1.2;
/// Enough of the best rate.
const BEST_RATE_FRACTION: f64 = 0.9;
/// A sync that returns this fast on average asked no disk (µs).
const CREDIBLE_SYNC_US_MIN: f64 = 10.0;
/// Where one in a hundred takes so many times as long as the usual one, something else is at work too.
const P99_TO_MEDIAN_MAX: f64 = 20.0;

/// All that is known.
pub(super) struct Findings<'a> {
    pub(super) substrate: &'a Substrate,
    pub(super) uring: &'a Uring,
    pub(super) measured: &'a [Measured],
}

/// Settings to choose.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Advice {
    /// `[journal] durability`.
    pub(super) durability: &'static str,
    /// `[journal] io_engine`.
    pub(super) io_engine: &'static str,
    /// `[journal.group_commit] in_flight`.
    pub(super) in_flight: u32,
    /// Why, a sentence each, with the figures.
    pub(super) reasons: Vec<String>,
}

impl Findings<'_> {
    pub(super) fn find(&self, space: Space, way: Way) -> Option<&Measured> {
        self.measured.iter().find(|m| m.method.space == space && m.method.way == way)
    }

    fn rate(&self, way: Way) -> Option<f64> {
        self.find(Space::Zeroed, way).and_then(Measured::rate)
    }

    /// The fastest single synced write on prepared space.
    fn single(&self) -> Option<(Way, f64)> {
        let ways = [Way::DirectDsync, Way::Dsync, Way::Fdatasync];
        ways.into_iter().filter_map(|way| Some((way, self.rate(way)?))).max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Returns true if a completed `sync_file_range` survives a power cut, as far as the kernel says.
    pub(super) fn range_sync_is_safe(&self) -> bool {
        self.substrate.zeroing_pays()
            && self.substrate.durability_class(false).is_durable()
            && self.substrate.volatile_cache().is_none()
    }

    /// Returns true if this way, on this space, keeps a write through a power cut.
    pub(super) fn is_safe(&self, measured: &Measured) -> bool {
        match measured.method.way {
            Way::Written => false,
            Way::SyncFileRange => measured.method.space == Space::Zeroed && self.range_sync_is_safe(),
            _ => self.substrate.durability_class(false).is_durable(),
        }
    }

    /// A series of rates by how many are in flight.
    fn series(&self, way: impl Fn(u32) -> Way) -> Vec<(u32, f64)> {
        let alone = self.rate(Way::DirectDsync).map(|rate| (1, rate));
        let more = [2, 4, 8].into_iter().filter_map(|n| Some((n, self.rate(way(n))?)));
        alone.into_iter().chain(more).collect()
    }

    pub(super) fn advice(&self) -> Advice {
        let mut reasons = Vec::new();
        let durability = self.durability(&mut reasons);
        let (threads, ring) = (self.series(Way::Threads), self.series(Way::Ring));
        let best =
            |series: &[(u32, f64)]| series.iter().filter(|(n, _)| *n > 1).map(|(_, rate)| *rate).fold(0.0, f64::max);
        let rates = format!(
            "io_uring reaches {}/s with several in flight, threads {}/s",
            count(best(&ring) as u64),
            count(best(&threads) as u64)
        );
        let by_ring = self.uring.permitted && best(&ring) > 0.0 && best(&ring) >= best(&threads);
        let (io_engine, series) = if by_ring { ("uring", ring) } else { ("blocking", threads) };
        match self.uring.permitted {
            true => reasons.push(rates),
            false => reasons.push("io_uring is not permitted".to_owned()),
        }
        let most = series.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
        let enough = series.iter().find(|(_, rate)| *rate >= BEST_RATE_FRACTION * most).copied();
        let in_flight = match enough {
            Some((n, rate)) => {
                if durability == "group_commit" {
                    let (rate, most) = (count(rate as u64), count(most as u64));
                    reasons.push(format!("{n} in flight reach {rate}/s, the most is {most}/s"));
                }
                n
            }
            // Without direct I/O nothing of that was measured: the default.
            None => 2,
        };
        Advice { durability, io_engine, in_flight, reasons }
    }

    fn durability(&self, reasons: &mut Vec<String>) -> &'static str {
        if let DurabilityClass::Written { because } = self.substrate.durability_class(false) {
            reasons.push(format!("`durable` is not offered here: {}", listed(&because)));
            if because.iter().all(Obstacle::yields_to_word) {
                reasons.push("only your word would change that: power_loss_protected = true, if it is so".to_owned());
            }
            return "fire_and_forget";
        }
        let (Some((way, single)), Some(range)) = (self.single(), self.rate(Way::SyncFileRange)) else {
            return "group_commit";
        };
        let times = range / single;
        let compared = format!(
            "sync_file_range is {times:.1} times as fast as {} for one writer ({}/s, {}/s)",
            way.name(),
            count(range as u64),
            count(single as u64)
        );
        match (self.substrate.volatile_cache(), times >= SYNC_RANGE_SPEEDUP_MIN) {
            (None, true) if self.substrate.zeroing_pays() => {
                reasons.push(format!("{compared}, and every device says write through"));
                "sync_file_range"
            }
            (Some(volatile), true) if self.substrate.zeroing_pays() => {
                reasons.push(format!("{compared}, but not safe here: {volatile}"));
                "group_commit"
            }
            _ => {
                reasons.push(format!("{} makes {}/s for one writer", way.name(), count(single as u64)));
                "group_commit"
            }
        }
    }

    /// Warnings before one trusts a log to this folder; the worst first.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let DurabilityClass::Written { because } = self.substrate.durability_class(false) {
            for obstacle in because {
                let offered = match obstacle.yields_to_word() {
                    true => "is offered here on your explicit word only",
                    false => "is never offered here",
                };
                warnings.push(format!("{obstacle}: `durable` {offered}"));
            }
        }
        if let Some(volatile) = self.substrate.volatile_cache()
            && self.substrate.durability_class(false).is_durable()
        {
            warnings
                .push(format!("volatile cache: {volatile}; only a flush makes a write safe, sync_file_range does not"));
        }
        if let Some((way, _)) = self.single()
            && let Some(measured) = self.find(Space::Zeroed, way)
        {
            let (name, p50, p99) = (way.name(), measured.micros(50.0), measured.micros(99.0));
            if p50 < CREDIBLE_SYNC_US_MIN {
                warnings.push(format!(
                    "{name} takes {p50:.1} µs: no disk answers a flush so fast, unless it need not ask its medium"
                ));
            }
            if p99 > P99_TO_MEDIAN_MAX * p50 {
                warnings.push(format!(
                    "the figures are unsteady ({name}: p99 is {:.0} times p50): the disk or the processors are busy; probe \
                     again when they rest",
                    p99 / p50
                ));
            }
        }
        if self.substrate.hypervisor {
            warnings.push(
                "this looks like a virtual machine: the kernel's report about caches comes from the host, and may be wrong"
                    .to_owned(),
            );
        }
        if self.substrate.direct_io == Some(false) {
            warnings.push(
                "there is no direct I/O here: the page cache is used, which is slower and less steady".to_owned(),
            );
        }
        warnings.extend(self.uring.notes.iter().map(|note| format!("io_uring: {note}")));
        warnings.extend(self.substrate.notes.iter().cloned());
        warnings
    }
}

fn listed(obstacles: &[Obstacle]) -> String {
    obstacles.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use clad_journal::io::device::{Device, DeviceKind, WriteCache};
    use clad_journal::io::probe::{METHODS, Method};

    use super::*;

    fn substrate(filesystem: &str, write_cache: WriteCache) -> Substrate {
        let disk = Device {
            name: "sda".into(),
            number: (8, 0),
            kind: DeviceKind::Disk,
            leaf: true,
            write_cache,
            fua: false,
            physical_block: 4096,
            logical_block: 512,
            rotational: false,
            model: None,
            stops_flush: None,
        };
        Substrate {
            filesystem: filesystem.into(),
            mount_point: "/".into(),
            mount_options: vec!["rw".into()],
            journaled: (filesystem == "ext4").then_some(true),
            below: Vec::new(),
            devices: vec![disk],
            block_size: 4096,
            direct_io: Some(true),
            hypervisor: false,
            notes: Vec::new(),
        }
    }

    fn uring(permitted: bool) -> Uring {
        let notes = if permitted { Vec::new() } else { vec!["refused".to_owned()] };
        Uring { permitted, notes, kernel: "6.1".into(), disabled: Some(0), memlock_bytes: None }
    }

    /// Rates by method, each from one operation of that length.
    fn rates(rate: impl Fn(Method) -> Option<f64>) -> Vec<Measured> {
        let one = |method| {
            let mut measured = Measured::of(method);
            match rate(method) {
                Some(rate) => {
                    let nanos = (1e9 / rate) as u64;
                    measured.latencies.saturating_record(nanos * u64::from(method.way.in_flight()));
                    measured.nanos = nanos;
                }
                None => measured.error = Some("not offered".to_owned()),
            }
            measured
        };
        METHODS.into_iter().map(one).collect()
    }

    fn usual(method: Method) -> Option<f64> {
        Some(match method.way {
            Way::Written => 500_000.0,
            Way::Fdatasync => 4_000.0,
            Way::Dsync => 8_000.0,
            Way::DirectDsync => 9_000.0,
            Way::SyncFileRange => 16_000.0,
            Way::Threads(n) => [14_000.0, 22_000.0, 31_000.0][n.ilog2() as usize - 1],
            Way::Ring(n) => [15_000.0, 33_000.0, 35_000.0][n.ilog2() as usize - 1],
        })
    }

    fn advice(substrate: &Substrate, uring: &Uring, measured: &[Measured]) -> (&'static str, &'static str, u32) {
        let advice = Findings { substrate, uring, measured }.advice();
        assert!(!advice.reasons.is_empty());
        (advice.durability, advice.io_engine, advice.in_flight)
    }

    #[test]
    fn a_usual_disk() {
        let (disk, ring) = (substrate("ext4", WriteCache::WriteBack), uring(true));
        let figures = rates(usual);
        assert_eq!(advice(&disk, &ring, &figures), ("group_commit", "uring", 4));
        assert_eq!(advice(&disk, &uring(false), &figures), ("group_commit", "blocking", 8));
        let findings = Findings { substrate: &disk, uring: &ring, measured: &figures };
        let said = findings.advice().reasons.join("\n");
        assert!(said.contains("1.8 times") && said.contains("not safe here: sda has a write cache"), "{said}");
        assert!(findings.warnings().join("\n").contains("volatile cache"));
        let range = findings.find(Space::Zeroed, Way::SyncFileRange).expect("measured");
        assert!(!findings.is_safe(range));
    }

    #[test]
    fn a_disk_with_power_loss_protection() {
        let ring = uring(true);
        let figures = rates(usual);
        let safe = substrate("xfs", WriteCache::WriteThrough);
        assert_eq!(advice(&safe, &ring, &figures), ("sync_file_range", "uring", 4));
        let findings = Findings { substrate: &safe, uring: &ring, measured: &figures };
        assert!(findings.range_sync_is_safe() && findings.warnings().is_empty(), "{:?}", findings.warnings());
        // Where it gains nothing, or on a file system that moves what is overwritten, it is not worth it.
        let level =
            rates(|method| usual(method).map(|rate| if method.way == Way::SyncFileRange { 9_500.0 } else { rate }));
        assert_eq!(advice(&safe, &ring, &level).0, "group_commit");
        assert_eq!(advice(&substrate("btrfs", WriteCache::WriteThrough), &ring, &figures).0, "group_commit");
    }

    #[test]
    fn where_durable_is_out_of_reach() {
        let ring = uring(true);
        let figures = rates(|method| usual(method).map(|rate| rate * 1000.0));
        for (filesystem, word) in
            [("tmpfs", "never"), ("overlay", "explicit word"), ("nfs4", "explicit word"), ("fuse.x", "word")]
        {
            let place = substrate(filesystem, WriteCache::Unknown);
            assert_eq!(advice(&place, &ring, &figures).0, "fire_and_forget", "{filesystem}");
            let findings = Findings { substrate: &place, uring: &ring, measured: &figures };
            let said = findings.warnings().join("\n");
            assert!(said.contains(filesystem) && said.contains(word), "{said}");
            assert!(findings.measured.iter().all(|measured| !findings.is_safe(measured)));
        }
    }

    #[test]
    fn without_figures_the_defaults() {
        let nothing = rates(|_| None);
        assert_eq!(
            advice(&substrate("ext4", WriteCache::WriteBack), &uring(true), &nothing),
            ("group_commit", "blocking", 2)
        );
        let no_ring = rates(|method| usual(method).filter(|_| !matches!(method.way, Way::Ring(_))));
        assert_eq!(advice(&substrate("ext4", WriteCache::WriteBack), &uring(true), &no_ring).1, "blocking");
    }

    #[test]
    fn a_busy_machine_is_said() {
        let (disk, ring) = (substrate("ext4", WriteCache::WriteBack), uring(true));
        let mut figures = rates(usual);
        let said = |figures: &[Measured]| {
            Findings { substrate: &disk, uring: &ring, measured: figures }.warnings().join("\n").contains("unsteady")
        };
        assert!(!said(&figures));
        let single = figures.iter_mut().find(|m| m.method.way == Way::DirectDsync && m.method.space == Space::Zeroed);
        let single = single.expect("measured");
        single.latencies.saturating_record_n(100_000, 90);
        single.latencies.saturating_record_n(4_000_000, 10);
        assert!(said(&figures));
    }

    #[test]
    fn what_is_odd_is_said() {
        let mut place = substrate("ext4", WriteCache::WriteThrough);
        place.hypervisor = true;
        place.direct_io = Some(false);
        place.notes.push("something".into());
        let memory = substrate("tmpfs", WriteCache::WriteBack);
        let said = Findings { substrate: &memory, uring: &uring(true), measured: &[] }.warnings().join("\n");
        assert!(said.contains("`durable` is never offered here"), "{said}");
        let figures = rates(|method| usual(method).map(|rate| rate * 100.0));
        let said = Findings { substrate: &place, uring: &uring(false), measured: &figures }.warnings().join("\n");
        for word in ["virtual machine", "no direct I/O", "something", "io_uring: refused", "no disk answers"] {
            assert!(said.contains(word), "{word}: {said}");
        }
    }
}
