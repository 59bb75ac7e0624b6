//! The configuration from outside: layers in, values or errors out.

mod errors;
mod example;
mod layers;
mod merge;
mod output;
mod reload;

use std::fs;
use std::path::{Path, PathBuf};

use super::{Config, ConfigErrors, LoadArgs, Loaded};

/// A configuration folder of its own, with nothing of this process in it.
struct Fixture {
    folder: tempfile::TempDir,
    args: LoadArgs,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let args = LoadArgs {
            config: None,
            instance: None,
            base: folder.path().to_owned(),
            sets: Vec::new(),
            env: Vec::new(),
        };
        Self { folder, args }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(self, name: &str, text: &str) -> Self {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.args.env.push((name.into(), value.into()));
        self
    }

    fn set(mut self, text: &str) -> Self {
        self.args.sets.push(text.to_owned());
        self
    }

    fn config(mut self, path: &Path) -> Self {
        self.args.config = Some(path.to_owned());
        self
    }

    fn instance(mut self, name: &str) -> Self {
        self.args.instance = Some(name.to_owned());
        self
    }

    fn load(&self) -> Result<Loaded, ConfigErrors> {
        Config::load(&self.args)
    }

    /// The values, where all is right.
    fn loaded(&self) -> Loaded {
        self.load().unwrap_or_else(|errors| panic!("{errors}"))
    }

    /// Each error's text, with this fixture's folder as `ETC`.
    fn errors(&self) -> Vec<String> {
        let folder = self.folder.path().display().to_string();
        let errors = self.load().expect_err("a configuration with errors");
        errors.iter().map(|error| error.to_string().replace(&folder, "ETC")).collect()
    }
}
