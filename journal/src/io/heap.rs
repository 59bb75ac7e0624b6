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

/// Makes the allocator return pieces of 4 MiB and more as they are freed. To be called once, at the start.
///
/// By itself, glibc raises the size from which it does so to that of each such piece, up to 32 MiB, and retains twice as
/// much at the end of each arena: after requests of 20 MiB, one at a time, 100 MB of free memory were measured.
#[cfg(target_env = "gnu")]
pub fn return_large_memory() {
    const PIECE: libc::c_int = 4 << 20;
    const THRESHOLD: libc::c_int = -3; // where glibc takes a piece from the system by itself: malloc.h
    // SAFETY: no pointer goes in or comes out. With one of both set, glibc leaves both as they are.
    let _ = unsafe { (libc::mallopt(THRESHOLD, PIECE), libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * PIECE)) };
}

/// Does nothing: other allocators do this by themselves, or not at all.
#[cfg(not(target_env = "gnu"))]
pub fn return_large_memory() {}

/// Does nothing: other allocators do this by themselves, or not at all.
#[cfg(not(target_env = "gnu"))]
pub fn release_free_memory() {}
