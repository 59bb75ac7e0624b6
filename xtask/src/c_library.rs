//! `cargo xtask package c FOLDER`: the library for C, laid out as `pkg-config` and the linker look for it.
//!
//! Invariants: `include/clad.h` is what cbindgen makes of `client-sdk/c/src` (a test). cbindgen is a dependency of this
//! crate's tests alone: no crate that is shipped has it in its tree, and no other program has to be installed to see a
//! header that is old.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Where the library's sources are.
pub(crate) const SOURCES: &str = "client-sdk/c";

/// Builds the library below a folder and answers where it is; what it is built of lies in `target`.
pub(crate) fn build(workspace: &Path, target: &Path, folder: &Path, profile: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(workspace).env("CARGO_BUILD_BUILD_DIR", target).env("CARGO_TARGET_DIR", folder);
    command.args(["build", "--quiet", "--package", "clad-c", "--profile", profile]);
    ensure!(command.status()?.success(), "the library for C was not built");
    Ok(folder.join(if profile == "dev" { "debug" } else { profile }))
}

/// Lays out what was built below a folder: `lib/`, `include/`, `lib/pkgconfig/`.
pub(crate) fn install(workspace: &Path, built: &Path, prefix: &Path) -> Result<()> {
    let sources = workspace.join(SOURCES);
    let (lib, include) = (prefix.join("lib"), prefix.join("include"));
    for folder in [&lib, &include, &lib.join("pkgconfig")] {
        fs::create_dir_all(folder).with_context(|| format!("no folder {}", folder.display()))?;
    }
    for (from, to) in [
        (built.join("libclad.so"), lib.join("libclad.so.0")),
        (built.join("libclad.a"), lib.join("libclad.a")),
        (sources.join("include/clad.h"), include.join("clad.h")),
    ] {
        fs::copy(&from, &to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    }
    let link = lib.join("libclad.so");
    if link.symlink_metadata().is_err() {
        std::os::unix::fs::symlink("libclad.so.0", link)?;
    }
    let template = fs::read_to_string(sources.join("clad.pc.in"))?;
    let filled =
        template.replace("@PREFIX@", &prefix.to_string_lossy()).replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    Ok(fs::write(lib.join("pkgconfig/clad.pc"), filled)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the order in which a reader of the header needs them.
    const FILES: [&str; 10] = [
        "status.rs",
        "error.rs",
        "options.rs",
        "producer.rs",
        "record.rs",
        "ticket.rs",
        "stats.rs",
        "reader_event.rs",
        "filter.rs",
        "reader.rs",
    ];

    #[test]
    fn c_header_is_what_cbindgen_makes_of_the_sources() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(SOURCES);
        let config = cbindgen::Config::from_file(sources.join("cbindgen.toml")).expect("the settings");
        let mut builder = cbindgen::Builder::new().with_config(config);
        for file in FILES {
            builder = builder.with_src(sources.join("src").join(file));
        }
        let mut made = Vec::new();
        builder.generate().expect("a header").write(&mut made);
        let (made, path) = (String::from_utf8(made).expect("text"), sources.join("include/clad.h"));
        if std::env::var_os("CLAD_UPDATE").is_some() {
            fs::write(&path, &made).expect("written");
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(found == made, "{} is old: CLAD_UPDATE=1 cargo test -p xtask c_header", path.display());
    }
}
