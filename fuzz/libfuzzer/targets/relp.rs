//! `clad_fuzz`'s target `relp`, with coverage.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some(target) = clad_fuzz::Target::named("relp") {
        (target.run)(data);
    }
});
