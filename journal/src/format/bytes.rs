//! Little-endian fields at fixed places. Out of range is a bug of the caller, which checks the length first.

pub(super) fn get<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&b[at..at + N]);
    out
}
pub(super) fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(get(b, at))
}
pub(super) fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(get(b, at))
}
pub(super) fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(get(b, at))
}
pub(super) fn i64_at(b: &[u8], at: usize) -> i64 {
    i64::from_le_bytes(get(b, at))
}
pub(super) fn put<const N: usize>(b: &mut [u8], at: usize, v: [u8; N]) {
    b[at..at + N].copy_from_slice(&v);
}
