//! `clad_fuzz`'s target `otlp_json`, with coverage.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some(target) = clad_fuzz::Target::named("otlp_json") {
        (target.run)(data);
    }
});
