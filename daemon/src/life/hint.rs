//! The two commands that a developer who just started clad wants next: one that sends a line, one that reads it back.

use std::path::Path;

/// Call of `clactl` from the user's folder: the program beside this one, or through cargo, or by name.
fn clactl() -> String {
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("clactl")));
    let shown = |path: &Path| {
        let here = std::env::current_dir().unwrap_or_default();
        match path.strip_prefix(&here) {
            // Where a service manager starts it, there is no user's folder.
            _ if here == Path::new("/") => path.display().to_string(),
            // A bare name would be looked for elsewhere.
            Ok(short) if short.components().count() == 1 => format!("./{}", short.display()),
            Ok(short) => short.display().to_string(),
            Err(_) => path.display().to_string(),
        }
    };
    match beside {
        Some(path) if path.is_file() => shown(&path),
        _ if std::env::var_os("CARGO_MANIFEST_DIR").is_some() => "cargo run --release -q -p clactl --".to_owned(),
        _ => "clactl".to_owned(),
    }
}

/// The text.
pub(crate) fn hint(socket: &Path) -> String {
    let (clactl, socket) = (clactl(), socket.display());
    format!(
        "clad is ready. Send a first line, and read it back:\n\
         \n  echo 'hello clad' | {clactl} append --server unix://{socket}\n  {clactl} query --server unix://{socket}\n"
    )
}
