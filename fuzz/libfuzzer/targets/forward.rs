//! `clad_fuzz`'s target `frame`, with coverage.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some(target) = clad_fuzz::Target::named("forward") {
        (target.run)(data);
    }
});
