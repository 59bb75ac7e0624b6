//! Who may import whom, and what a crate may be called.

use toml::{Table, Value};

use super::Finding;
use super::walk::File;

/// What each crate that is shipped may depend on of ours.
const MAY_IMPORT: [(&str, &[&str]); 10] = [
    ("clad-proto", &[]),
    ("clad-journal", &[]),
    ("clad-shm", &[]),
    ("clad-client", &["clad-proto", "clad-shm"]),
    ("clad-tracing", &["clad-client"]),
    ("clad-relay", &["clad-client", "clad-proto"]),
    ("clad-c", &["clad-client"]),
    ("clad-python", &["clad-client", "clad-proto"]),
    ("clad", &["clad-proto", "clad-journal", "clad-shm"]),
    ("clactl", &["clad-client", "clad-proto", "clad-journal"]),
];
/// Crates that are not shipped may import anything, as may tests.
const UNRESTRICTED: [&str; 10] = [
    "clad-sim",
    "clad-models",
    "clad-benches",
    "clad-peers",
    "clad-peers-newest",
    "clad-fuzz",
    "clad-libfuzzer",
    "clad-e2e",
    "clad-otlp-agent",
    "xtask",
];
/// Names of crates for things that belong nowhere.
const CATCH_ALL_NAMES: [&str; 5] = ["common", "utils", "util", "helpers", "shared"];

/// A manifest of a crate.
struct Manifest<'a> {
    file: &'a File,
    name: String,
    table: Table,
}

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut manifests = Vec::new();
    for file in files.iter().filter(|file| file.name() == "Cargo.toml") {
        match file.text.parse::<Table>() {
            Ok(table) => {
                let name = table.get("package").and_then(|package| package.get("name"));
                if let Some(name) = name.and_then(Value::as_str).map(str::to_owned) {
                    manifests.push(Manifest { file, name, table });
                }
            }
            Err(error) => findings.push(finding(file, error.to_string())),
        }
    }
    let ours: Vec<&str> = manifests.iter().map(|manifest| manifest.name.as_str()).collect();
    for manifest in &manifests {
        findings.extend(of_manifest(manifest, &ours));
    }
    findings
}

fn of_manifest(manifest: &Manifest<'_>, ours: &[&str]) -> Vec<Finding> {
    let (name, file) = (manifest.name.as_str(), manifest.file);
    let mut findings = Vec::new();
    if name.split('-').any(|part| CATCH_ALL_NAMES.contains(&part)) {
        findings.push(finding(file, format!("a crate called {name}: name it by what it is for")));
    }
    let mut imports = Vec::new();
    dependencies(&manifest.table, &mut imports);
    for import in &imports {
        if import.contains(concat!("mm", "ap")) {
            findings.push(finding(file, format!("{import}: nothing in a data folder is ever memory-mapped")));
        }
    }
    if UNRESTRICTED.contains(&name) {
        return findings;
    }
    let Some((_, allowed)) = MAY_IMPORT.iter().find(|(known, _)| *known == name) else {
        findings.push(finding(file, format!("{name} is not in tidy's table of who may import whom")));
        return findings;
    };
    for import in imports.iter().filter(|import| ours.contains(&import.as_str())) {
        if !allowed.contains(&import.as_str()) {
            findings.push(finding(file, format!("{name} must not import {import}")));
        }
    }
    findings
}

/// The names of what a manifest's tables name, but for development.
fn dependencies(table: &Table, names: &mut Vec<String>) {
    for section in ["dependencies", "build-dependencies"] {
        for (key, value) in table.get(section).and_then(Value::as_table).into_iter().flatten() {
            // A dependency may go by another name here.
            let real = value.get("package").and_then(Value::as_str).unwrap_or(key);
            names.push(real.to_owned());
        }
    }
    let targets = table.get("target").and_then(Value::as_table);
    for target in targets.into_iter().flatten().filter_map(|(_, value)| value.as_table()) {
        dependencies(target, names);
    }
}

fn finding(file: &File, what: String) -> Finding {
    Finding { path: file.path.clone(), line: 0, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(manifests: &[&str]) -> Vec<String> {
        let files: Vec<File> = manifests.iter().map(|text| File::new("x/Cargo.toml", text)).collect();
        check(&files).into_iter().map(|finding| finding.what).collect()
    }

    const JOURNAL: &str = "[package]\nname = \"clad-journal\"\n";
    const PROTO: &str = "[package]\nname = \"clad-proto\"\n";

    #[test]
    fn the_arrows_point_one_way() {
        let daemon = "[package]\nname = \"clad\"\n[dependencies]\nclad-proto.workspace = true\nclad-journal = { path = \"y\" }\n";
        assert!(found(&[JOURNAL, PROTO, daemon]).is_empty());
        for wrong in [
            "[dependencies]\nclad-journal.workspace = true\n",
            "[build-dependencies]\nclad-journal.workspace = true\n",
            "[dependencies]\nother = { package = \"clad-journal\", path = \"y\" }\n",
            "[target.'cfg(unix)'.dependencies]\nclad-journal.workspace = true\n",
        ] {
            let proto = format!("{PROTO}{wrong}");
            assert_eq!(found(&[JOURNAL, &proto]), ["clad-proto must not import clad-journal"], "{wrong}");
        }
        let tests = format!("{PROTO}[dev-dependencies]\nclad-journal.workspace = true\n");
        assert!(found(&[JOURNAL, &tests]).is_empty());
        let sim = "[package]\nname = \"clad-sim\"\n[dependencies]\nclad-journal.workspace = true\n";
        assert!(found(&[JOURNAL, sim]).is_empty());
    }

    #[test]
    fn a_crate_must_be_known_and_well_named() {
        assert_eq!(
            found(&["[package]\nname = \"clad-common\"\n"]),
            [
                "a crate called clad-common: name it by what it is for",
                "clad-common is not in tidy's table of who may import whom"
            ]
        );
    }

    #[test]
    fn mappings_come_by_no_crate() {
        let text = format!("{JOURNAL}[dependencies]\nmem{} = \"1\"\n", "map2");
        assert_eq!(found(&[&text]).len(), 1);
    }
}
