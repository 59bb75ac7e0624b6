//! Real OTLP exporters, as they come, against a clad: what they send is read back and compared, then the daemon is killed
//! under each. And what a person has at hand: curl, grpcurl, telemetrygen. And the blocks of docs/SENDERS.md.
//!
//! Invariants: each client is installed below the build folder, at the versions that its folder in `e2e/otlp` names; one that
//! cannot be had fails its own cases by name, and the others go on. The cases are the tests in `e2e/tests/otlp`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::disk::{built_tests, call, closing_words};
use super::{Run, need, need_what, output, sdk_go, sdk_python, target};

/// The language of a run without `whole`: the clients of all take ten minutes to build.
const SLICE: &str = "python";
/// Kills of the daemon for each language, over its transports together.
const KILLS_DEFAULT: u64 = 10;
const GRPCURL: &str = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4";
const TELEMETRYGEN: &str = "github.com/open-telemetry/opentelemetry-collector-contrib/cmd/telemetrygen@v0.161.0";

/// A client: its language, what it speaks, and what makes it and answers its call.
struct Client {
    language: &'static str,
    transports: &'static [&'static str],
    install: fn(&Folders) -> Result<String>,
}

const CLIENTS: [Client; 4] = [
    Client { language: "python", transports: &["grpc", "http"], install: python },
    Client { language: "go", transports: &["grpc", "http"], install: go_agent },
    Client { language: "rust", transports: &["grpc", "http", "json"], install: rust },
    Client { language: "js", transports: &["http", "json"], install: js },
];

/// A test of a program that is no SDK: the case, the test, and the variable of the program with what installs it.
struct Tool {
    case: &'static str,
    test: &'static str,
    program: Option<(&'static str, &'static str)>,
}

const TOOLS: [Tool; 6] = [
    Tool {
        case: "curl: JSON by HTTP/1.1, HTTP/2, gzip and a Unix socket",
        test: "tools::curl_with_json",
        program: None,
    },
    Tool { case: "bad requests are refused, each with its status", test: "tools::bad_requests", program: None },
    Tool { case: "the commands of SENDERS.md", test: "page::the_commands_of_the_page", program: None },
    Tool { case: "the listeners of SENDERS.md", test: "page::the_listeners_of_the_page", program: None },
    Tool {
        case: "grpcurl lists, describes and exports",
        test: "tools::grpcurl_lists_describes_and_exports",
        program: Some(("CLAD_OTLP_GRPCURL", GRPCURL)),
    },
    Tool {
        case: "telemetrygen by gRPC and HTTP",
        test: "tools::telemetrygen_by_grpc_and_http",
        program: Some(("CLAD_OTLP_TELEMETRYGEN", TELEMETRYGEN)),
    },
];

pub(super) fn run(run: &mut Run) -> Result<()> {
    const CALL: &str = "cargo xtask ci otlp [whole [KILLS] | losses [KILLS]]";
    if let Some((word, kills)) = run.args.split_first()
        && word == "losses"
    {
        let kills = kills.first().cloned();
        return losses(run, kills.as_deref());
    }
    let (is_whole, kills) = match run.args.as_slice() {
        [] => (false, KILLS_DEFAULT),
        [whole] if whole == "whole" => (true, KILLS_DEFAULT),
        [whole, kills] if whole == "whole" => (true, kills.parse().context(CALL)?),
        more => bail!("{CALL}, not {}", more.join(" ")),
    };
    need("curl", &["curl"])?;
    need("gzip", &["gzip"])?;
    let folders = Folders::new(&run.root)?;
    let tests = built_tests(&run.root, "otlp")?;
    for tool in TOOLS.into_iter().filter(|tool| is_whole || tool.program.is_none()) {
        run.case(tool.case, || {
            let mut command = call(&tests, tool.test, None);
            if let Some((variable, package)) = tool.program {
                command.env(variable, folders.go_install(package)?);
            }
            passes(&mut command)
        });
    }
    if is_whole {
        run.case("the collector of SENDERS.md", || {
            let collector = folders.collector()?;
            passes(call(&tests, "page::the_collector_of_the_page", None).env("CLAD_OTLP_COLLECTOR", collector))
        });
    }
    for client in CLIENTS.into_iter().filter(|client| is_whole || client.language == SLICE) {
        let agent = (client.install)(&folders);
        let share = kills.div_ceil(client.transports.len() as u64);
        for transport in client.transports {
            let with = |test: &str| {
                let agent = agent.as_ref().map_err(|error| anyhow!("it is not installed: {error:#}"))?;
                let mut command = call(&tests, test, None);
                command.env("CLAD_OTLP_AGENT", agent).env("CLAD_OTLP_LANGUAGE", client.language);
                command.env("CLAD_OTLP_TRANSPORT", transport).env("CLAD_OTLP_KILLS", share.to_string());
                passes(&mut command)
            };
            if client.language == SLICE && *transport == client.transports[0] {
                run.case("the variables of SENDERS.md, by python", || with("page::the_variables_of_the_page"));
            }
            let name = format!("{} by {transport}", client.language);
            run.case(&format!("{name}: what is sent is what is read"), || with("export::what_is_sent_is_what_is_read"));
            run.case(&format!("{name}: what it calls a success survives {share} kills"), || {
                with("kills::what_was_called_a_success_survives")
            });
        }
    }
    Ok(())
}

/// What OpenTelemetry's collector loses of what it answered, by the deaths under which clad loses nothing.
fn losses(run: &mut Run, kills: Option<&str>) -> Result<()> {
    let collector = Folders::new(&run.root)?.collector()?;
    let tests = built_tests(&run.root, "senders")?;
    run.case("the losses of a collector", || {
        let mut command = call(&tests, "peers::what_a_collector_loses", None);
        passes(command.env("CLAD_OTLP_COLLECTOR", collector).envs(kills.map(|kills| ("CLAD_SENDERS_KILLS", kills))))
    });
    Ok(())
}

/// Runs one test, and shows its own line of how it went.
fn passes(command: &mut Command) -> Result<()> {
    let said = output(command.arg("--nocapture"))?;
    ensure!(closing_words(&said), "the test did not run:\n{said}");
    for line in said.lines().filter_map(|line| line.find("kills: ").map(|at| &line[at..])) {
        println!("          {line}");
    }
    Ok(())
}

/// The interpreter that has Python's SDK.
pub(super) fn python_with_sdk(root: &Path) -> Result<String> {
    let call = python(&Folders::new(root)?)?;
    Ok(call.split(' ').next().unwrap_or_default().to_owned())
}

pub(super) fn go_with_sdk(root: &Path) -> Result<String> {
    go_agent(&Folders::new(root)?)
}

pub(super) fn grpcurl(root: &Path) -> Result<String> {
    Ok(Folders::new(root)?.go_install(GRPCURL)?.display().to_string())
}

/// Where the agents' sources are, and where they are built.
struct Folders {
    root: PathBuf,
    sources: PathBuf,
    built: PathBuf,
}

impl Folders {
    fn new(root: &Path) -> Result<Self> {
        let built = target(root).join("otlp");
        fs::create_dir_all(&built).with_context(|| format!("no folder {}", built.display()))?;
        Ok(Self { root: root.to_owned(), sources: root.join("e2e/otlp"), built })
    }

    fn go(&self, module: &str) -> Result<Command> {
        let mut go = sdk_go::downloading(&self.root, &self.sources.join(module))?;
        go.env("GOBIN", self.built.join("bin"));
        Ok(go)
    }

    /// Builds the collector, and answers its path.
    fn collector(&self) -> Result<PathBuf> {
        let collector = self.built.join("collector");
        output(self.go("collector")?.args(["build", "-o"]).arg(&collector).arg("."))?;
        Ok(collector)
    }

    /// Installs a program of Go, and answers its path.
    fn go_install(&self, package: &str) -> Result<PathBuf> {
        let name = package.split('@').next().and_then(|path| path.rsplit('/').next()).context("a name")?;
        output(self.go("go")?.args(["install", package]))?;
        Ok(self.built.join("bin").join(name))
    }
}

fn python(folders: &Folders) -> Result<String> {
    need("python3", &["python3"])?;
    need_what("venv of Python", &["python3-venv", "python3-pip"], || sdk_python::says("import ensurepip, venv"))?;
    let environment = folders.built.join("python");
    output(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    let (program, sources) = (environment.join("bin/python"), folders.sources.join("python"));
    let mut pip = Command::new(&program);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
    output(pip.arg(sources.join("requirements.txt")))?;
    Ok(format!("{} -B {}", program.display(), sources.join("agent.py").display()))
}

fn go_agent(folders: &Folders) -> Result<String> {
    let agent = folders.built.join("agent-go");
    output(folders.go("go")?.args(["vet", "."]))?;
    output(folders.go("go")?.args(["build", "-o"]).arg(&agent).arg("."))?;
    Ok(agent.display().to_string())
}

fn rust(folders: &Folders) -> Result<String> {
    let built = folders.built.join("rust");
    let cargo = |words: &[&str]| {
        let mut cargo = Command::new("cargo");
        output(cargo.args(words).current_dir(folders.sources.join("rust")).env("CARGO_TARGET_DIR", &built)).map(drop)
    };
    cargo(&["fmt", "--check"])?;
    cargo(&["build", "--quiet", "--locked"])?;
    Ok(built.join("debug/clad-otlp-agent").display().to_string())
}

fn js(folders: &Folders) -> Result<String> {
    need("node", &["nodejs"])?;
    need("npm", &["npm"])?;
    let folder = folders.built.join("js");
    fs::create_dir_all(&folder)?;
    for name in ["agent.js", "package.json", "package-lock.json"] {
        fs::copy(folders.sources.join("js").join(name), folder.join(name)).context(name)?;
    }
    let mut npm = Command::new("npm");
    output(npm.current_dir(&folder).args(["ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]))?;
    Ok(format!("node {}", folder.join("agent.js").display()))
}
