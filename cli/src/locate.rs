//! Which daemon a command speaks to.
//!
//! Invariants: a flag comes before its environment variable, and either before looking around; looking around takes
//! the first socket that exists of `$RUNTIME_DIRECTORY`, `/run/clad`, `./clad-data` and says where it looked when there
//! is none. `--instance NAME` looks where `clad@NAME.service` keeps its sockets, and nowhere else. Orders never go to
//! another daemon than the one that `--server`, or `CLAD_SERVER` in its place, names.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clad_client::Address;
use clap::Args;

use crate::exit::Stop;

/// Where the daemon is; without any of these the first that exists of $RUNTIME_DIRECTORY, /run/clad, ./clad-data.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Which daemon")]
pub(crate) struct Which {
    /// Address for records: unix://PATH, tcp://HOST:PORT, grpc://HOST:PORT, within TLS tcp+tls:// and grpcs://, or shm://PATH for a ring on that socket [default: unix:// and clad.sock in the first that exists of $RUNTIME_DIRECTORY, /run/clad, ./clad-data] [env: CLAD_SERVER]
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub(crate) server: Option<String>,
    /// Address for administration: unix://PATH, or grpcs://HOST:PORT of a daemon whose rules allow it [default beside --server or CLAD_SERVER unix://DIR/NAME or shm://DIR/NAME: DIR/admin.sock] [env: CLAD_ADMIN]
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub(crate) admin: Option<String>,
    /// The daemon that runs as clad@NAME.service
    #[arg(long, global = true, value_name = "NAME", conflicts_with_all = ["server", "admin"])]
    pub(crate) instance: Option<String>,
}

/// Variables that say where a daemon is. Read once, handed over: tests bring their own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    server: Option<OsString>,
    admin: Option<OsString>,
    runtime: Option<OsString>,
}

impl Surroundings {
    /// Those of this process.
    pub(crate) fn of_process() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self { server: set("CLAD_SERVER"), admin: set("CLAD_ADMIN"), runtime: set("RUNTIME_DIRECTORY") }
    }

    /// Folders that may hold sockets, first choice first.
    fn folders(&self, instance: Option<&str>) -> Vec<PathBuf> {
        if let Some(name) = instance {
            return vec![PathBuf::from(format!("/run/clad-{name}"))];
        }
        // systemd gives several folders with colons between them; the first is the daemon's own.
        let runtime = self.runtime.as_ref().and_then(|list| Some(list.to_str()?.split(':').next()?.into()));
        runtime.into_iter().chain(["/run/clad".into(), "./clad-data".into()]).collect()
    }
}

impl Which {
    /// The address for records.
    pub(crate) fn server(&self, around: &Surroundings) -> Result<Address, Stop> {
        match chosen(self.server.as_deref(), around.server.as_ref(), self.instance.is_some(), "--server")? {
            Some(text) => text.parse().map_err(|error| Stop::usage(format!("{error}"))),
            None => Ok(Address::unix(self.find(around, "clad.sock", "--server ADDRESS")?)),
        }
    }

    /// The socket, or the address, that takes orders.
    pub(crate) fn admin(&self, around: &Surroundings) -> Result<Address, Stop> {
        let instance = self.instance.is_some();
        // A flag for the one socket says more than a variable for the other.
        if let (None, Some(server)) = (&self.admin, &self.server) {
            return beside(server, "--server");
        }
        let admin = chosen(self.admin.as_deref(), around.admin.as_ref(), instance, "--admin")?;
        // And a variable for the other more than looking around: the records go there, and so do orders.
        if let (None, Some(server)) = (&admin, chosen(None, around.server.as_ref(), instance, "--server")?) {
            return beside(&server, "CLAD_SERVER");
        }
        match admin {
            Some(text) => match text.parse() {
                Ok(address @ (Address::Unix(_) | Address::Grpcs(_))) => Ok(address),
                _ => Err(Stop::usage(format!(
                    "`{text}` is no admin address: unix://PATH or grpcs://HOST:PORT is wanted"
                ))),
            },
            None => self.find(around, "admin.sock", "--admin unix://PATH").map(Address::unix),
        }
    }

    fn find(&self, around: &Surroundings, socket: &str, flag: &str) -> Result<PathBuf, Stop> {
        if let Some(name) = self.instance.as_deref().filter(|name| name.is_empty() || name.contains('/')) {
            return Err(Stop::usage(format!("`{name}` is no name of an instance")));
        }
        let places: Vec<PathBuf> =
            around.folders(self.instance.as_deref()).iter().map(|folder| folder.join(socket)).collect();
        places.iter().find(|path| may_exist(path)).cloned().ok_or_else(|| {
            let looked: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
            let start = match &self.instance {
                Some(name) => format!("`systemctl start clad@{name}`"),
                None => "`clad`".to_owned(),
            };
            Stop::Failed(anyhow::anyhow!(
                "no clad found: looked for {}; start one with {start}, or give {flag}",
                looked.join(", ")
            ))
        })
    }
}

/// The admin socket of the daemon whose socket for records was named: the one in the same folder.
fn beside(server: &str, by: &str) -> Result<Address, Stop> {
    match server.parse().map_err(|error| Stop::usage(format!("{by}: {error}")))? {
        // A ring is asked for by the socket for records.
        Address::Unix(path) | Address::Shm(path) => Ok(Address::unix(path.with_file_name("admin.sock"))),
        address @ Address::Grpcs(_) => Ok(address),
        _ => Err(Stop::usage(format!(
            "this command needs a daemon's admin socket, and {by} {server} does not give its path: give --admin unix://PATH"
        ))),
    }
}

fn chosen(flag: Option<&str>, variable: Option<&OsString>, instance: bool, name: &str) -> Result<Option<String>, Stop> {
    match (flag, variable) {
        (Some(flag), _) => Ok(Some(flag.to_owned())),
        (None, Some(value)) if !instance => match value.to_str() {
            Some(text) => Ok(Some(text.to_owned())),
            None => Err(Stop::usage(format!("the environment's address in place of {name} is not UTF-8"))),
        },
        _ => Ok(None),
    }
}

/// A folder that we may not look into may hold it: trying to connect says more than not finding it.
fn may_exist(path: &Path) -> bool {
    path.try_exists().unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(server: &str, admin: &str, runtime: &Path) -> Surroundings {
        let set = |text: &str| (!text.is_empty()).then(|| OsString::from(text));
        Surroundings { server: set(server), admin: set(admin), runtime: Some(runtime.into()) }
    }

    #[test]
    fn flag_then_variable_then_what_exists() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("clad.sock"), "").expect("a file");
        std::fs::write(folder.path().join("admin.sock"), "").expect("a file");
        let flagged =
            Which { server: Some("tcp://h:1".into()), admin: Some("unix:///flag.sock".into()), ..Which::default() };
        let all = around("grpc://h:2", "unix:///env.sock", folder.path());
        assert_eq!(flagged.server(&all).expect("an address"), Address::tcp("h", 1));
        assert_eq!(flagged.admin(&all).expect("a path"), Address::unix(Path::new("/flag.sock")));
        let bare = Which::default();
        assert_eq!(bare.server(&all).expect("an address"), Address::grpc("h", 2));
        assert_eq!(bare.admin(&all).expect("a path"), Address::unix(Path::new("/env.sock")));
        let none = around("", "", folder.path());
        assert_eq!(bare.server(&none).expect("an address"), Address::unix(folder.path().join("clad.sock")));
        assert_eq!(bare.admin(&none).expect("a path"), Address::unix(folder.path().join("admin.sock")));
    }

    #[test]
    fn orders_go_to_the_daemon_that_was_named() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("admin.sock"), "").expect("a file");
        let all = around("", "unix:///env.sock", folder.path());
        let named = |server: &str| Which { server: Some(server.into()), ..Which::default() };
        for beside in ["unix:///run/x/clad.sock", "shm:///run/x/clad.sock"] {
            assert_eq!(named(beside).admin(&all).expect("a path"), Address::unix(Path::new("/run/x/admin.sock")));
        }
        for elsewhere in ["tcp://h:1", "grpc://h:1", "nonsense"] {
            assert!(matches!(named(elsewhere).admin(&all), Err(Stop::Usage(_))), "{elsewhere}");
        }
        let both = Which { admin: Some("unix:///flag.sock".into()), ..named("tcp://h:1") };
        assert_eq!(both.admin(&all).expect("a path"), Address::unix(Path::new("/flag.sock")));
    }

    #[test]
    fn orders_go_to_the_daemon_that_the_variable_names() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("admin.sock"), "").expect("a file");
        let bare = Which::default();
        let named = |server: &str| around(server, "", folder.path());
        assert_eq!(bare.admin(&named("unix:///run/x/clad.sock")).expect("a path"), Address::unix("/run/x/admin.sock"));
        let Err(Stop::Usage(text)) = bare.admin(&named("tcp://h:1")) else { panic!("that names no folder") };
        assert!(text.to_string().contains("CLAD_SERVER tcp://h:1"), "{text}");
        // What says more is taken before it.
        let both = around("tcp://h:1", "unix:///env.sock", folder.path());
        assert_eq!(bare.admin(&both).expect("a path"), Address::unix(Path::new("/env.sock")));
        let instance = Which { instance: Some("no-such-one".into()), ..Which::default() };
        let error = instance.admin(&named("unix:///run/x/clad.sock")).expect_err("no such instance").to_string();
        assert!(error.contains("/run/clad-no-such-one/admin.sock"), "{error}");
    }

    #[test]
    fn where_it_looked_and_what_to_do() {
        let which = Which { instance: Some("no-such-one".into()), ..Which::default() };
        let error = which.server(&around("tcp://h:1", "", Path::new("/x"))).expect_err("no such instance").to_string();
        assert_eq!(
            error,
            "no clad found: looked for /run/clad-no-such-one/clad.sock; start one with \
             `systemctl start clad@no-such-one`, or give --server ADDRESS"
        );
        assert_eq!(
            around("", "", Path::new("/run/one:/run/two")).folders(None),
            ["/run/one", "/run/clad", "./clad-data"].map(PathBuf::from)
        );
    }

    #[test]
    fn addresses_that_cannot_be() {
        let which = Which { server: Some("clad.sock".into()), admin: Some("tcp://h:1".into()), ..Which::default() };
        let none = Surroundings::default();
        assert!(matches!(which.server(&none), Err(Stop::Usage(_))));
        assert!(matches!(which.admin(&none), Err(Stop::Usage(_))));
        let which = Which { instance: Some("../x".into()), ..Which::default() };
        assert!(matches!(which.server(&none), Err(Stop::Usage(_))));
    }
}
