//! Workspaces of their own have what they share with the first workspace in the same version and built in the same way: then
//! one build of it serves all, and CI has time for tests instead.

use std::collections::BTreeSet;
use std::path::Path;

use super::Finding;
use super::walk::File;

const LOCK: &str = "Cargo.lock";
const MANIFEST: &str = "Cargo.toml";
const OWN_WORKSPACES: [&str; 2] = ["client-sdk/python", "relay"];

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let read = |path: &Path| {
        let file = files.iter().find(|file| file.path == path)?;
        file.text.parse::<toml::Table>().ok()
    };
    let mut findings = Vec::new();
    let (lock, manifest) = (read(Path::new(LOCK)).unwrap_or_default(), read(Path::new(MANIFEST)).unwrap_or_default());
    for folder in OWN_WORKSPACES {
        let path = Path::new(folder).join(LOCK);
        let other = read(&path).unwrap_or_default();
        for (name, version) in versions(&other) {
            let ours: Vec<_> = versions(&lock)
                .into_iter()
                .filter(|(other, ours)| *other == name && range(ours) == range(version))
                .map(|(_, version)| version)
                .collect();
            if !ours.is_empty() && !ours.contains(&version) {
                let what = format!("{name} is {version} and in {LOCK} {}: `cargo update --precise`", ours.join(", "));
                findings.push(Finding { path: path.clone(), line: 0, what });
            }
        }
        let path = Path::new(folder).join(MANIFEST);
        let other_manifest = read(&path).unwrap_or_default();
        let locked: BTreeSet<_> = versions(&other).into_iter().map(|(name, _)| name).collect();
        let (ours, theirs) = (dev(&manifest), dev(&other_manifest));
        for name in ours.keys().chain(theirs.keys()).collect::<BTreeSet<_>>() {
            if (name == "*" || locked.contains(name.as_str())) && ours.get(name) != theirs.get(name) {
                let what = format!("profile.dev.package.{name:?} is another than in {MANIFEST}");
                findings.push(Finding { path: path.clone(), line: 0, what });
            }
        }
    }
    findings
}

fn versions(lock: &toml::Table) -> Vec<(&str, &str)> {
    let packages = lock.get("package").and_then(toml::Value::as_array).map(Vec::as_slice).unwrap_or_default();
    packages
        .iter()
        .filter(|package| package.get("source").is_some())
        .filter_map(|package| Some((package.get("name")?.as_str()?, package.get("version")?.as_str()?)))
        .collect()
}

/// Versions of one range can stand for each other: up to the first number that is not 0.
fn range(version: &str) -> Vec<&str> {
    let numbers = version.split('.').collect::<Vec<_>>();
    let first = numbers.iter().position(|number| *number != "0").unwrap_or(0);
    numbers.into_iter().take(first + 1).collect()
}

fn dev(manifest: &toml::Table) -> toml::Table {
    let package = || manifest.get("profile")?.get("dev")?.get("package")?.as_table().cloned();
    package().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(lock: &str, manifest: &str) -> Vec<String> {
        let package = |name, version| format!("[[package]]\nname = {name:?}\nversion = {version:?}\nsource = \"r\"\n");
        let ours = package("a", "1.2.0") + &package("b", "0.4.1") + &package("b", "0.5.0");
        let files = [
            File::new(LOCK, &ours),
            File::new(MANIFEST, "[profile.dev.package]\na = { opt-level = 1 }\nc = { opt-level = 1 }\n"),
            File::new("relay/Cargo.lock", lock),
            File::new("relay/Cargo.toml", manifest),
        ];
        check(&files).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn another_version_of_one_range_and_another_profile() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.2.0\"\nsource = \"r\"\n";
        let profile = "[profile.dev.package]\na = { opt-level = 1 }\n";
        assert_eq!(found(lock, profile), [] as [&str; 0]);
        assert_eq!(found(&lock.replace("1.2.0", "2.0.0"), profile), [] as [&str; 0]);
        assert!(found(&lock.replace("1.2.0", "1.3.0"), profile)[0].contains("a is 1.3.0 and in Cargo.lock 1.2.0"));
        let b = lock.replace("\"a\"", "\"b\"").replace("1.2.0", "0.4.2");
        assert!(found(&b, "")[0].contains("b is 0.4.2 and in Cargo.lock 0.4.1"));
        assert!(found(lock, "")[0].contains("profile.dev.package.\"a\""));
        assert!(found(lock, "[profile.dev.package]\na = { opt-level = 2 }\n")[0].contains("another than"));
    }
}
