//! Memory of C: the one place where it is read and written.
//!
//! Soundness: a pointer comes here from an argument of an exported function. clad.h says what it points to and for how
//! long, and its caller keeps to that; what can be seen not to be so is an error. No function here is public.

use std::ffi::{CStr, c_char, c_void};
use std::mem::{MaybeUninit, align_of, size_of};
use std::str::Utf8Error;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::error::Failure;

/// The length that stands for "up to the NUL".
const NUL_TERMINATED: usize = usize::MAX;
/// No struct of any version of clad.h is longer.
const STRUCT_BYTES_MAX: usize = 4096;
/// Texts up to this length are looked at byte by byte.
const SHORT_TEXT_BYTES: usize = 32;

/// A struct of clad.h that begins with its size in bytes, and may grow at its end.
///
/// # Safety
/// The first field is a `usize`, and all bits zero are a value.
pub(crate) unsafe trait Grows: Copy {}

/// A handle of clad.h.
pub(crate) trait Handle {
    /// The mark of the kind.
    const MARK: u64;
    /// The mark of this one. An atomic: a plain store right before the memory goes could be left out.
    fn mark(&self) -> &AtomicU64;
}

/// The mark of a handle that was freed.
const FREED_MARK: u64 = 0;

/// A copy of a struct from C. The fields that an older header does not have are zero; those that only a newer one has
/// must be zero.
pub(crate) fn sized<T: Grows>(name: &str, at: *const T) -> Result<Option<T>, Failure> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: clad.h: every struct begins with its size.
    let size = unsafe { at.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=STRUCT_BYTES_MAX).contains(&size) {
        return Err(Failure::argument(format!("{name}: the size {size} is none of a struct; begin with its _INIT")));
    }
    let known = size.min(size_of::<T>());
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: that many bytes are there by `size`, and no more than there is room for. Zeroes and what C has written
    // are a value of `T`, by the trait.
    let value = unsafe {
        std::ptr::copy_nonoverlapping(at.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), known);
        value.assume_init()
    };
    // SAFETY: the rest of `size` bytes.
    let rest = unsafe { std::slice::from_raw_parts(at.cast::<u8>().add(known), size - known) };
    if rest.iter().any(|byte| *byte != 0) {
        return Err(Failure::argument(format!("{name}: this library is older than its header, and lacks a setting")));
    }
    Ok(Some(value))
}

/// Writes a struct to C, as much of it as the header there has.
pub(crate) fn write_sized<T: Grows>(name: &str, at: *mut T, value: &T) -> Result<(), Failure> {
    if at.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: clad.h: every struct begins with its size, which stays.
    let size = unsafe { at.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=STRUCT_BYTES_MAX).contains(&size) {
        return Err(Failure::argument(format!("{name}: the size {size} is none of a struct; begin with its _INIT")));
    }
    let skip = size_of::<usize>();
    let known = size.min(size_of::<T>()) - skip;
    // SAFETY: that many bytes are there by `size`, behind the size itself; the two do not overlap.
    unsafe {
        let (from, to) = (std::ptr::from_ref(value).cast::<u8>().add(skip), at.cast::<u8>().add(skip));
        std::ptr::copy_nonoverlapping(from, to, known);
    }
    Ok(())
}

/// Writes an answer where C asked for it.
pub(crate) fn write<T>(name: &str, at: *mut T, value: T) -> Result<(), Failure> {
    if at.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: clad.h: it is not NULL, so there is room for one.
    unsafe { at.write_unaligned(value) };
    Ok(())
}

/// Writes a text with its NUL to C.
pub(crate) fn write_text(name: &str, at: *mut c_char, room: usize, text: &str) -> Result<(), Failure> {
    if at.is_null() {
        return Err(Failure::null(name));
    }
    if text.len() >= room {
        return Err(Failure::argument(format!("{name}: {} bytes are needed, {room} are there", text.len() + 1)));
    }
    // SAFETY: clad.h: there is room for `room` bytes, which is more than the text has.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), at.cast(), text.len());
        at.add(text.len()).write(0);
    }
    Ok(())
}

/// The bytes of C; nothing for NULL without a length.
#[inline(always)]
pub(crate) fn bytes<'a>(name: &str, at: *const c_void, len: usize) -> Result<Option<&'a [u8]>, Failure> {
    match (at.is_null(), len) {
        (true, 0 | NUL_TERMINATED) => Ok(None),
        (true, _) => Err(Failure::argument(format!("{name} is NULL and has a length"))),
        // SAFETY: clad.h: this length stands for a text that ends with a NUL.
        (false, NUL_TERMINATED) => Ok(Some(unsafe { CStr::from_ptr(at.cast()) }.to_bytes())),
        (false, len) if isize::try_from(len).is_err() => Err(Failure::argument(format!("{name}: {len} is no length"))),
        // SAFETY: clad.h: so many bytes are there for the time of the call.
        (false, len) => Ok(Some(unsafe { std::slice::from_raw_parts(at.cast(), len) })),
    }
}

/// Text, if bytes are UTF-8. A key or a word is short and ASCII as a rule, and seen to be so by a loop of a few steps.
#[inline(always)]
pub(crate) fn utf8(bytes: &[u8]) -> Result<&str, Utf8Error> {
    if bytes.len() <= SHORT_TEXT_BYTES && bytes.iter().fold(0, |all, byte| all | byte) < 0x80 {
        // SAFETY: ASCII is UTF-8.
        return Ok(unsafe { std::str::from_utf8_unchecked(bytes) });
    }
    std::str::from_utf8(bytes)
}

/// A text of C that ends with a NUL, and must be UTF-8; nothing for NULL.
pub(crate) fn text<'a>(name: &str, at: *const c_char) -> Result<Option<&'a str>, Failure> {
    let bytes = bytes(name, at.cast(), NUL_TERMINATED)?;
    let not_utf8 = |error| Failure::argument(format!("{name} is not UTF-8: {error}"));
    bytes.map(|bytes| utf8(bytes).map_err(not_utf8)).transpose()
}

/// An array of C.
pub(crate) fn array<'a, T>(name: &str, at: *const T, count: usize) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if at.is_null() {
        return Err(Failure::null(name));
    }
    let fits = count.checked_mul(size_of::<T>()).is_some_and(|bytes| isize::try_from(bytes).is_ok());
    if !fits || !at.addr().is_multiple_of(align_of::<T>()) {
        return Err(Failure::argument(format!("{name}: no array of {count} is there")));
    }
    // SAFETY: clad.h: so many are there for the time of the call, all of them set.
    Ok(unsafe { std::slice::from_raw_parts(at, count) })
}

/// The element of an array whose elements have the size that the first one states.
pub(crate) fn element<T: Grows>(at: *const T, index: usize) -> *const T {
    // SAFETY: it is not NULL and within the array, by its caller; its size was read before.
    unsafe { at.byte_add(index * at.cast::<usize>().read_unaligned()) }
}

/// A handle for C.
pub(crate) fn give<T: Handle>(handle: T) -> *mut T {
    Box::into_raw(Box::new(handle))
}

/// A handle from C. A freed one is seen where its memory has not been used again.
pub(crate) fn handle<'a, T: Handle>(name: &str, at: *mut T) -> Result<&'a T, Failure> {
    check(name, at)?;
    // SAFETY: [`give`] made it, and clad.h: it is not freed while a call has it.
    Ok(unsafe { &*at })
}

/// A handle that no other thread has, by clad.h.
pub(crate) fn handle_mut<'a, T: Handle>(name: &str, at: *mut T) -> Result<&'a mut T, Failure> {
    check(name, at)?;
    // SAFETY: [`give`] made it, and clad.h: one thread at a time uses it.
    Ok(unsafe { &mut *at })
}

fn check<T: Handle>(name: &str, at: *mut T) -> Result<(), Failure> {
    if at.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: as [`handle`].
    if !at.addr().is_multiple_of(align_of::<T>()) || unsafe { &*at }.mark().load(Relaxed) != T::MARK {
        return Err(Failure::argument(format!("{name} is no such handle, or was freed")));
    }
    Ok(())
}

/// Takes a handle back from C; nothing for NULL.
pub(crate) fn take<T: Handle>(name: &str, at: *mut T) -> Result<Option<Box<T>>, Failure> {
    if at.is_null() {
        return Ok(None);
    }
    check(name, at)?;
    // SAFETY: [`give`] made it of a box, and its mark says that it was not taken back yet.
    let handle = unsafe { Box::from_raw(at) };
    handle.mark().store(FREED_MARK, Relaxed);
    Ok(Some(handle))
}
