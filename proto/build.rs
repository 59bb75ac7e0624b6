//! Generates the gRPC code, and only with the feature `grpc`: without it this crate has no build step.

fn main() {
    #[cfg(feature = "grpc")]
    grpc::generate();
}

#[cfg(feature = "grpc")]
mod grpc {
    use std::{env, fs, path::PathBuf};

    const FILES: [&str; 4] = [
        "clad/v1/ingest.proto",
        "clad/v1/log.proto",
        "clad/v1/admin.proto",
        "opentelemetry/proto/collector/logs/v1/logs_service.proto",
    ];

    pub(super) fn generate() {
        println!("cargo:rerun-if-changed=proto");
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        // protox compiles .proto files in this process: nobody who builds clad needs protoc.
        let descriptors = protox::compile(FILES, ["proto"]).expect("the .proto files compile");
        let mut encoded = Vec::new();
        prost::Message::encode(&descriptors, &mut encoded).expect("a vector takes any length");
        fs::write(out.join("clad_descriptors.bin"), encoded).expect("OUT_DIR is writable");
        tonic_prost_build::configure()
            .bytes(".") // half the decoding time of Vec, and no copy on the way in
            .compile_fds(descriptors)
            .expect("code for the .proto files");
    }
}
