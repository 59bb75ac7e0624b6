//! Checks if this process may set up io_uring, and if not, why: as the journal does it when it opens.

use std::fs;

use rustix::process::Resource;

use crate::io::uring::set_up;

/// Findings about io_uring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uring {
    /// A ring could be set up, and it knows the operations that are needed.
    pub permitted: bool,
    /// The reason against it, with its remedy.
    pub notes: Vec<String>,
    /// The kernel's release.
    pub kernel: String,
    /// `kernel.io_uring_disabled`, where the kernel has it: 0 open, 1 for a group, 2 for nobody.
    pub disabled: Option<u32>,
    /// Bytes that this process may lock (`RLIMIT_MEMLOCK`); `None` is no limit. Some kernels count rings.
    pub memlock_bytes: Option<u64>,
}

/// Tries to set up a ring.
pub fn uring() -> Uring {
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
    let refused = set_up().err();
    Uring {
        permitted: refused.is_none(),
        notes: refused.into_iter().map(|refused| refused.0.text).collect(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        disabled: disabled.and_then(|text| text.trim().parse().ok()),
        memlock_bytes: rustix::process::getrlimit(Resource::Memlock).current,
    }
}
