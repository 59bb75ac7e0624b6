//! Names the shared library as programs ask for it: the number rises when a program would have to be built again.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libclad.so.0");
    // A dependency may have exported names for C of its own (crc-fast has): they are not this library's.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
}
