//! Directions within a crate: who never imports whom.
//!
//! Invariants: a pair is a file or a folder on either side. An import counts where the name is defined, also where another
//! file re-exports it; imports of tests do not count.

use super::super::Finding;
use super::super::walk::File;
use super::graph::imports;

/// The first never imports the second.
const NEVER: [(&str, &str); 9] = [
    ("daemon/src/ingest/", "daemon/src/life/"),
    ("daemon/src/read/", "daemon/src/life/"),
    ("daemon/src/ingest/admission.rs", "daemon/src/ingest/reactor/"),
    ("daemon/src/ingest/admission.rs", "daemon/src/ingest/framed/"),
    ("daemon/src/ingest/reactor/", "daemon/src/ingest/framed/"),
    ("client-sdk/src/ring/", "client-sdk/src/producer/"),
    ("client-sdk/src/session/", "client-sdk/src/producer/"),
    ("client-sdk/src/session/", "client-sdk/src/transport/"),
    ("shm/src/layout/", "shm/src/daemon/"),
];

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let imports = match imports(files) {
        Ok(imports) => imports,
        Err(error) => return vec![Finding { path: "xtask".into(), line: 0, what: format!("{error:#}") }],
    };
    let forbidden = |from: &str, to: &str| NEVER.iter().any(|(a, b)| from.starts_with(a) && to.starts_with(b));
    let found = imports.into_iter().filter(|(from, to)| forbidden(from, to));
    found.map(|(from, to)| Finding { path: from.into(), line: 0, what: format!("it never imports {to}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_import_against_the_direction_is_found_and_no_other() {
        let found = |ring: &str| {
            let lib = File::new("client-sdk/src/lib.rs", "mod ring;\nmod producer;\npub use producer::Producer;");
            let producer = "use crate::ring::Ring;\npub struct Producer(Ring);";
            let producer = File::new("client-sdk/src/producer/mod.rs", producer);
            check(&[lib, producer, File::new("client-sdk/src/ring/mod.rs", ring)]).len()
        };
        assert_eq!(found("pub struct Ring;"), 0);
        assert_eq!(found("use crate::Producer;\npub struct Ring;"), 1, "also by a name that the root gives out");
    }
}
