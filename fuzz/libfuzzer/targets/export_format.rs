//! `clad_fuzz`'s target `export_format`, with coverage.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some(target) = clad_fuzz::Target::named("export_format") {
        (target.run)(data);
    }
});
