//! The configuration: a file, flags and variables, as an operator writes them.
//!
//! What must hold of any text: it loads, or every error names a place and says something; what loads, printed as
//! `clad config` prints it, loads to the same values.
//!
//! The input is the file's text; after a NUL byte come `--set` flags, one to a line; lines that start with `CLAD_`
//! are variables instead.

use std::path::{Path, PathBuf};

use clad::config::{Config, LoadArgs, Loaded};

pub(crate) fn config(data: &[u8]) {
    let mut parts = data.splitn(2, |b| *b == 0);
    let file = parts.next().unwrap_or_default();
    let lines = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let dir = match tempfile::tempdir() {
        Ok(dir) => dir,
        Err(error) => panic!("a folder for the file: {error}"),
    };
    let path = dir.path().join("clad.toml");
    let (mut sets, mut env) = (Vec::new(), Vec::new());
    for line in lines.lines() {
        match line.split_once('=').filter(|(name, _)| name.starts_with("CLAD_") && !name.contains('\0')) {
            Some((name, value)) => env.push((name.into(), value.into())),
            None => sets.push(line.to_owned()),
        }
    }
    let Some(loaded) = load(&path, file, sets, env, dir.path()) else { return };
    let printed = loaded.to_toml();
    let Some(again) = load(&path, printed.as_bytes(), Vec::new(), Vec::new(), dir.path()) else {
        panic!("what `clad config` printed is refused:\n{printed}");
    };
    assert_eq!(again.config, loaded.config, "what `clad config` printed means something else:\n{printed}");
    assert!(loaded.to_json().is_object());
}

fn load(
    path: &Path,
    text: &[u8],
    sets: Vec<String>,
    env: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    base: &Path,
) -> Option<Loaded> {
    if let Err(error) = std::fs::write(path, text) {
        panic!("write the file: {error}");
    }
    let args = LoadArgs { config: Some(PathBuf::from(path)), base: base.to_owned(), instance: None, sets, env };
    match Config::load(&args) {
        Ok(loaded) => Some(loaded),
        Err(errors) => {
            assert!(errors.iter().count() > 0);
            assert!(errors.iter().all(|error| !error.to_string().trim().is_empty()));
            None
        }
    }
}
