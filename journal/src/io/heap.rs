//! Free memory that the allocator retains.
#![allow(unsafe_code)] // a call that no wrapper has

/// Returns free memory to the system, also where it lies between memory in use.
///
/// By itself, glibc returns only memory that is free at the end of an arena. One small live allocation there blocks all
/// below it: after many connections 92 MB of arenas were measured with 5 MB in use. The call takes each arena's lock
/// while it walks through it, some milliseconds.
#[cfg(target_env = "gnu")]
pub fn release_free_memory() {
    // SAFETY: no pointer goes in or comes out, and the arenas are locked by the call itself.
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Does nothing: other allocators do this by themselves, or not at all.
#[cfg(not(target_env = "gnu"))]
pub fn release_free_memory() {}
