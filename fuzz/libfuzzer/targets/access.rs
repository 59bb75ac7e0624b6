//! `clad_fuzz`'s target `access`, with coverage.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some(target) = clad_fuzz::Target::named("access") {
        (target.run)(data);
    }
});
