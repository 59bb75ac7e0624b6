//! Fuzz targets: each is a plain function of some bytes that panics when a promise is broken.
//!
//! What must hold of every target: it never panics on any bytes, its work and memory are bounded by the length of its
//! input and the limits that it names, and the same bytes do the same thing. The stable tests (`tests/corpus.rs`) run
//! all of them over the kept corpus and over seeded mutations of it; `libfuzzer/` runs one of them for long, with
//! coverage to guide it.
//!
//! Most formats here are full of checksums, which a mutation breaks at once, and then nothing behind the first check
//! is ever reached. So each such target takes its input twice: as it is, and with its checksums made right
//! ([`reseal`]), as an attacker would who knows the format.

mod access;
mod config;
mod files;
mod forward;
mod frame;
mod journald;
mod log;
mod mutate;
mod otlp;
mod payload;
mod reseal;
mod syslog;

use std::path::{Path, PathBuf};

pub use mutate::Mutator;

/// A target.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name: of its folder in `corpus/`, and in `libfuzzer/`.
    pub name: &'static str,
    /// The function. It panics when a promise is broken.
    pub run: fn(&[u8]),
    /// Golden files of other crates that are inputs too: a folder below the workspace, and how their names start.
    pub golden: &'static [(&'static str, &'static str)],
    /// Longest input that the stable tests make.
    pub max_len: usize,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "frame", run: frame::frame, golden: &[("proto/tests/golden", "frame_")], max_len: 4 << 10 },
    Target {
        name: "handshake",
        run: frame::handshake,
        golden: &[("proto/tests/golden", "frame_hello"), ("proto/tests/golden", "frame_welcome")],
        max_len: 1 << 10,
    },
    Target {
        name: "forward",
        run: forward::forward,
        golden: &[("proto/tests/golden", "frame_forward"), ("proto/tests/golden", "frame_records")],
        max_len: 2 << 10,
    },
    Target { name: "record", run: payload::record, golden: &[("proto/tests/golden", "payload_")], max_len: 4 << 10 },
    Target { name: "segment", run: files::segment, golden: &[("journal/tests/golden", "")], max_len: 64 << 10 },
    Target { name: "footer", run: files::footer, golden: &[("journal/tests/golden", "")], max_len: 64 << 10 },
    Target { name: "meta", run: files::meta, golden: &[("journal/tests/golden", "clad.meta")], max_len: 66 << 10 },
    Target { name: "recovery", run: log::recovery, golden: &[], max_len: 512 },
    Target { name: "otlp", run: otlp::otlp, golden: &[], max_len: 4 << 10 },
    Target { name: "otlp_json", run: otlp::otlp_json, golden: &[], max_len: 4 << 10 },
    Target { name: "syslog", run: syslog::syslog, golden: &[], max_len: 2 << 10 },
    Target { name: "relp", run: syslog::relp, golden: &[], max_len: 2 << 10 },
    Target { name: "export_format", run: journald::export_format, golden: &[], max_len: 2 << 10 },
    Target { name: "access", run: access::access, golden: &[], max_len: 512 },
    Target { name: "certificate_name", run: access::certificate_name, golden: &[], max_len: 2 << 10 },
    Target { name: "config", run: config::config, golden: &[("deploy", "clad.toml")], max_len: 16 << 10 },
];

impl Target {
    /// The target of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// The kept inputs, with the name of each: files of `corpus/NAME/`, then the golden files.
    ///
    /// # Errors
    /// A folder that is listed and cannot be read.
    pub fn corpus(&self) -> std::io::Result<Vec<(String, Vec<u8>)>> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let own = here.join("corpus").join(self.name);
        let mut kept = if own.is_dir() { read_all(&own, "")? } else { Vec::new() };
        for (folder, start) in self.golden {
            kept.extend(read_all(&here.join("..").join(folder), start)?);
        }
        Ok(kept)
    }
}

fn read_all(folder: &Path, start: &str) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        let Some(name) = path.file_name().and_then(|n| n.to_str()).filter(|n| n.starts_with(start)) else { continue };
        if path.extension().is_some_and(|e| e == "rs") {
            continue;
        }
        let bytes = std::fs::read(&path)?;
        let bytes = if name.ends_with(".hex") { unhex(&bytes) } else { bytes };
        found.push((name.to_owned(), bytes));
    }
    Ok(found)
}

/// Bytes from pairs of hexadecimal digits; white space is skipped, a line from `#` on too.
fn unhex(text: &[u8]) -> Vec<u8> {
    let digits: Vec<u8> = text
        .split(|b| *b == b'\n')
        .flat_map(|line| line.split(|b| *b == b'#').next().unwrap_or_default())
        .filter_map(|b| char::from(*b).to_digit(16).map(|d| d as u8))
        .collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}
