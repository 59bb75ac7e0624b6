//! From layers to a checked [`Config`].
//!
//! Invariants: the process's own arguments, environment and folders are passed in, never looked up here; either
//! everything is right and a config comes out, or every error does.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::defaults::NETWORK_KEYS;
use super::error::ConfigErrors;
use super::layers::Layers;
use super::origin::{Origin, Provenance};
use super::schema;
use super::syslog;
use super::types::Config;
use super::validate::validate;

/// Folder of `clad.toml` and `clad.d/`.
pub const CONFIG_FOLDER: &str = "/etc/clad";

/// All that a configuration is made from.
#[derive(Clone, Debug)]
pub struct LoadArgs {
    /// Replaces the file and the folder; it must exist.
    pub config: Option<PathBuf>,
    /// Name of an instance beside the host's log: `NAME.toml` in `base`, which must exist, in place of `clad.toml` and
    /// `clad.d/`; folders of its own; no network unless set.
    pub instance: Option<String>,
    /// Folder of `clad.toml` and `clad.d/`.
    pub base: PathBuf,
    /// The `--set` flags in their order.
    pub sets: Vec<String>,
    /// The environment.
    pub env: Vec<(OsString, OsString)>,
}

impl LoadArgs {
    /// A call of clad with this command that means the same files and folders, from wherever it is made.
    #[must_use]
    pub fn as_call(&self, command: &str) -> String {
        // An instance knows its folders by its name.
        let named = |variable| self.folder(variable).filter(|_| self.instance.is_none()).map(|path| (variable, path));
        let folders = ["STATE_DIRECTORY", "RUNTIME_DIRECTORY"].into_iter().filter_map(named);
        let folders: String = folders.map(|(variable, path)| format!("{variable}={} ", path.display())).collect();
        match (&self.config, &self.instance) {
            (Some(file), _) => format!("{folders}clad --config {} {command}", file.display()),
            (None, Some(name)) => format!("clad --instance {name} {command}"),
            (None, None) => format!("{folders}clad {command}"),
        }
    }

    /// The arguments of this process: its environment and the system's folder.
    #[must_use]
    pub fn of_process(config: Option<PathBuf>, instance: Option<String>, sets: Vec<String>) -> Self {
        Self { config, instance, base: PathBuf::from(CONFIG_FOLDER), sets, env: std::env::vars_os().collect() }
    }

    /// The folder that a variable names, else the one that the unit gives an instance.
    fn place(&self, origin: &'static str, of_instance: &str) -> Option<(PathBuf, &'static str)> {
        let variable = origin.trim_start_matches('$');
        let named = self.folder(variable).map(|folder| (folder.to_owned(), origin));
        let own =
            || self.instance.as_ref().map(|name| (PathBuf::from(format!("{of_instance}/clad-{name}")), "--instance"));
        named.or_else(own)
    }

    /// The first folder of a variable such as `$STATE_DIRECTORY`, which may list several.
    fn folder(&self, variable: &str) -> Option<&Path> {
        use std::os::unix::ffi::OsStrExt;
        let (_, value) = self.env.iter().find(|(name, _)| name == variable)?;
        let first = value.as_bytes().split(|byte| *byte == b':').next()?;
        (!first.is_empty()).then(|| Path::new(OsStr::from_bytes(first)))
    }
}

/// A configuration that holds, and how it came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// Origin of each.
    pub provenance: Provenance,
    /// The files that were read, the weakest first.
    pub files: Vec<PathBuf>,
    /// The files are the host's own, which its service reads with folders of its own in the environment: none was
    /// named.
    pub is_of_the_host: bool,
    /// Warnings that an operator should see once, though nothing is wrong.
    pub warnings: Vec<String>,
}

impl Config {
    /// Reads all layers and checks the outcome.
    ///
    /// # Errors
    /// Everything that is wrong with any layer or with the outcome.
    pub fn load(args: &LoadArgs) -> Result<Loaded, ConfigErrors> {
        let mut layers = Layers::default();
        if args.instance.is_some() {
            layers.turned_off(&NETWORK_KEYS, "--instance");
        }
        match (&args.config, &args.instance) {
            (Some(file), _) => layers.file(file),
            (None, Some(name)) => layers.file(&args.base.join(format!("{name}.toml"))),
            (None, None) => layers.folder(&args.base),
        }
        layers.environment(&args.env);
        layers.flags(&args.sets);
        let merged = layers.merge();
        let mut errors = layers.errors;

        let mut config = Self::default();
        let mut provenance = Provenance::default();
        // Keys whose value was refused hold their default; judging them beside others would mislead.
        let mut refused = Vec::new();
        let merged = merged.map_err(|error| errors.push(error.into())).unwrap_or_default();
        for (key, value) in schema::values(&merged) {
            match key.put(&mut config, value) {
                Ok(()) => provenance.record(key.name(), value.into()),
                // The layer has reported it.
                Err(_) => refused.push(key.name()),
            }
        }
        // A section without a key is one, too.
        for name in schema::names_in(&merged) {
            config.ingest.syslog.entry(name).or_default();
        }
        let state = args.place("$STATE_DIRECTORY", "/var/lib");
        let runtime = args.place("$RUNTIME_DIRECTORY", "/run");
        let derived = config.settle(state, runtime, |key| provenance.has(key));
        for (key, from) in derived {
            provenance.record(key.to_owned(), Origin::derived(from));
        }
        errors.extend(validate(&config, &provenance, &refused));
        errors.extend(syslog::validate(&config, &provenance, &refused));

        if !errors.is_empty() {
            return Err(ConfigErrors(errors));
        }
        let warnings = stray_warning(&layers.stray_variables).into_iter().collect();
        let is_of_the_host = args.config.is_none() && args.instance.is_none() && !layers.files.is_empty();
        Ok(Loaded { config, provenance, files: layers.files, is_of_the_host, warnings })
    }
}

fn stray_warning(strays: &[String]) -> Option<String> {
    (!strays.is_empty())
        .then(|| format!("ignored: only CLAD_SECTION__KEY (two underscores) sets a key: {}", strays.join(", ")))
}
