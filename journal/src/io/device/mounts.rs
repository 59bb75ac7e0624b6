//! The mount table: `/proc/self/mountinfo`, and which of its lines a path lies on.
//!
//! The kernel's own answer (the mount id of the path) decides; where it is not known, the longest mount point above
//! the path whose device number agrees, and the later line among equals, because mounts cover each other. Names in
//! the table are escaped: space, tab, line feed and backslash stand as three octal digits.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::substrate::Facts;

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) id: u64,
    pub(super) number: (u32, u32),
    pub(super) mount_point: PathBuf,
    pub(super) filesystem: String,
    pub(super) source: PathBuf,
    /// Options of the mount, then those of the file system; none twice.
    pub(super) options: Vec<String>,
}

impl Mount {
    /// The value of `key=value` among the options.
    pub(super) fn option(&self, key: &str) -> Option<&str> {
        self.options.iter().find_map(|o| o.strip_prefix(key)?.strip_prefix('='))
    }
}

/// Reads a mount table. Lines that make no sense are left out: one strange mount must not hide the others.
pub(super) fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let id = text(fields.next()?).parse().ok()?;
    let _parent = fields.next()?;
    let number = parse_number(&text(fields.next()?))?;
    let _root = fields.next()?;
    let mount_point = path(fields.next()?);
    let per_mount = fields.next()?;
    fields.by_ref().find(|f| *f == b"-")?; // any number of optional fields ends here
    let filesystem = text(fields.next()?);
    let source = path(fields.next()?);
    let of_filesystem = fields.next().unwrap_or_default();
    let mut options: Vec<String> = Vec::new();
    // Split first, decode then: a comma inside a value is escaped too.
    for option in per_mount.split(|b| *b == b',').chain(of_filesystem.split(|b| *b == b',')).map(text) {
        if !option.is_empty() && !options.contains(&option) {
            options.push(option);
        }
    }
    Some(Mount { id, number, mount_point, filesystem, source, options })
}

/// `254:1` as two numbers.
pub(super) fn parse_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

fn path(field: &[u8]) -> PathBuf {
    OsString::from_vec(unescape(field)).into()
}

fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// The mount that a path lies on.
pub(super) fn find<'a>(mounts: &'a [Mount], path: &Path, facts: &Facts) -> Option<&'a Mount> {
    if let Some(id) = facts.mount_id
        && let Some(mount) = mounts.iter().find(|m| m.id == id)
    {
        return Some(mount);
    }
    let longest = |of: &dyn Fn(&Mount) -> bool| {
        mounts
            .iter()
            .filter(|m| path.starts_with(&m.mount_point) && of(m))
            .max_by_key(|m| m.mount_point.components().count()) // the last of equals
    };
    // A btrfs subvolume has a device number that no mount has: then the place alone decides.
    facts.dev.and_then(|dev| longest(&|m| m.number == dev)).or_else(|| longest(&|_| true))
}
