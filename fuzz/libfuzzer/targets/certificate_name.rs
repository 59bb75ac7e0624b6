//! `clad_fuzz`'s target `certificate_name`, with coverage.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some(target) = clad_fuzz::Target::named("certificate_name") {
        (target.run)(data);
    }
});
