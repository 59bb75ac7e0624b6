//! The library for C: its header, its symbols, its tests with a real daemon, and what valgrind says of them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::examples::{self, with_example};
use super::{Run, build, chaos, faults, need, output, target, with_daemon, with_hosts_daemon};
use crate::c_library::{self, SOURCES};

/// Statements of a first durable record at most.
const FIRST_RECORD_STATEMENTS_MAX: usize = 5;
/// Receipts of an agent before its end is asked for.
const AGENT_RECEIPTS: usize = 200;
/// The variable that turns a fault on.
const FAULT_VARIABLE: &str = "CLAD_C_FAULT";

/// What the cases share.
struct Place {
    root: PathBuf,
    sources: PathBuf,
    /// Where the library is installed.
    prefix: PathBuf,
    /// Where programs are built.
    programs: PathBuf,
    daemon: PathBuf,
    /// Folders of daemons.
    data: PathBuf,
}

/// Those that take seconds there.
const DAYS_UNDER_VALGRIND: [&str; 3] = [
    "a_ring_takes_records_and_gives_receipts",
    "a_producer_that_is_freed_brings_its_records_home",
    "each_rule_for_a_lack_of_room_drops_what_it_says",
];

/// The test of TLS: valgrind takes a tag that ring's assembly makes for uninitialised.
const WITHIN_TLS: &str = "a_record_comes_within_tls_by_the_name_of_its_sender";

pub(super) fn run(run: &mut Run) -> Result<()> {
    let kills = chaos::kills(run)?;
    need("cc", &["gcc", "libc6-dev"])?;
    need("c++", &["g++"])?;
    need("nm", &["binutils"])?;
    need("mkfs.ext4", &["e2fsprogs"])?;
    need("openssl", &["openssl"])?;
    need("pkg-config", &["pkg-config"])?;
    need("valgrind", &["valgrind", "libc6-dbg"])?;
    let place = Place::new(&run.root)?;

    run.case("the header is what cbindgen makes of the sources", || {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let said = output(Command::new(cargo).current_dir(&place.root).args([
            "test",
            "--workspace",
            "--bin",
            "xtask",
            "c_header",
        ]))?;
        ensure!(said.contains("1 passed"), "it did not run:\n{said}");
        Ok(())
    });
    for (compiler, standard) in
        [("cc", "c99"), ("cc", "c11"), ("cc", "c17"), ("c++", "c++11"), ("c++", "c++17"), ("c++", "c++20")]
    {
        run.case(&format!("the header compiles as {standard}"), || place.header(compiler, standard));
    }
    run.case("the library exports what the list says, under its name", || place.symbols());
    // Several cases run these, and each may be the only one.
    for program in ["agent", "print"] {
        place.compile(&place.sources.join(format!("tests/{program}.c")), &place.programs.join(program))?;
    }
    for program in ["basics", "days", "disk"] {
        place.compile(&place.sources.join(format!("tests/{program}.c")), &place.programs.join(program))?;
        for test in place.tests(program)? {
            run.case(&format!("{program}: {test}"), || place.test(program, &test, &place.prefix).map(drop));
        }
    }
    let of_days = DAYS_UNDER_VALGRIND.map(|test| ("days", test.to_owned()));
    for (program, test) in place.tests("basics")?.into_iter().map(|test| ("basics", test)).chain(of_days) {
        run.case(&format!("valgrind: {test}"), || {
            let mut command = Command::new("valgrind");
            command.args(["--quiet", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"]);
            command.args(["--show-leak-kinds=definite", "--num-callers=30"]);
            if test == WITHIN_TLS {
                command.arg("--undef-value-errors=no");
            }
            place.run(command.arg(place.programs.join(program)).arg(&test), &place.prefix).map(drop)
        });
    }
    run.case("a first durable record, as the page says it", || place.first_record());
    run.case(&examples::name(examples::C_PROGRAM), || place.example());
    run.case("the bench of logging calls stores every record of each contender", || place.bench());
    run.case("the agent keeps what it has receipts for, over its own death", || place.agent());
    run.case("the agent that drops accounts for each record", || place.dropping_agents());
    run.case("a program with the static library needs no other", || place.statically());
    let library = place.prefix.join("lib");
    let agent = format!("env LD_LIBRARY_PATH={} {}", library.display(), place.programs.join("agent").display());
    chaos::chaos_with_rings(run, "C", &agent, kills);

    let mut wrong = None;
    run.case("wrong on purpose: without a fault the tests pass", || {
        let prefix = place.wrong_library()?;
        for fault in FAULTS {
            place.test(fault.program, fault.caught_by, &prefix)?;
        }
        wrong = Some(prefix);
        Ok(())
    });
    for fault in FAULTS.iter().filter(|_| wrong.is_some()) {
        let prefix = wrong.clone().unwrap_or_default();
        run.case(&format!("wrong on purpose: {} is caught", fault.wrong), || place.is_caught(fault, &prefix));
    }
    Ok(())
}

impl Place {
    fn new(root: &Path) -> Result<Self> {
        let folder = target(root).join("tmp").join("sdk-c");
        if folder.exists() {
            std::fs::remove_dir_all(&folder).context("an old folder cannot be removed")?;
        }
        let (prefix, programs, data) = (folder.join("prefix"), folder.join("programs"), folder.join("data"));
        for folder in [&programs, &data] {
            std::fs::create_dir_all(folder)?;
        }
        let daemon = build(root, "clad")?;
        build(root, "clactl")?; // beside it
        let built = c_library::build(root, &target(root), &target(root), "dev")?;
        c_library::install(root, &built, &prefix)?;
        Ok(Self { root: root.to_owned(), sources: root.join(SOURCES), prefix, programs, daemon, data })
    }

    /// What `pkg-config` says.
    fn flags(&self) -> Result<Vec<String>> {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", self.prefix.join("lib/pkgconfig")).args(["--cflags", "--libs", "clad"]);
        Ok(output(&mut command)?.split_whitespace().map(str::to_owned).collect())
    }

    fn compile(&self, source: &Path, program: &Path) -> Result<()> {
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-pedantic", "-Werror", "-O1", "-g"]);
        output(cc.arg(source).args(self.flags()?).args(["-lpthread", "-o"]).arg(program)).map(drop)
    }

    /// Runs a program with the library below a prefix.
    fn run(&self, command: &mut Command, prefix: &Path) -> Result<String> {
        output(self.with_library(command, prefix))
    }

    fn with_library<'c>(&self, command: &'c mut Command, prefix: &Path) -> &'c mut Command {
        command.env("LD_LIBRARY_PATH", prefix.join("lib")).env("CLAD_BIN", &self.daemon);
        command.env("CLAD_TEST_DIR", &self.data).env_remove("CLAD_SERVER")
    }

    fn tests(&self, program: &str) -> Result<Vec<String>> {
        let said = self.run(Command::new(self.programs.join(program)).arg("--list"), &self.prefix)?;
        Ok(said.lines().map(str::to_owned).collect())
    }

    fn test(&self, program: &str, test: &str, prefix: &Path) -> Result<String> {
        let said = self.run(Command::new(self.programs.join(program)).arg(test), prefix)?;
        ensure!(said.contains(&format!("passed {test}")), "it did not run:\n{said}");
        Ok(said)
    }

    /// Twice in one file, and every initialiser and function of its own used.
    fn header(&self, compiler: &str, standard: &str) -> Result<()> {
        let source = self.programs.join(if compiler == "cc" { "header.c" } else { "header.cc" });
        std::fs::write(&source, HEADER_PROGRAM)?;
        let mut command = Command::new(compiler);
        command.arg(format!("-std={standard}")).args(["-Werror", "-Wall", "-Wextra", "-pedantic", "-fsyntax-only"]);
        output(command.arg("-I").arg(self.prefix.join("include")).arg(&source)).map(drop)
    }

    fn symbols(&self) -> Result<()> {
        let library = self.prefix.join("lib/libclad.so.0");
        let said = output(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(&library))?;
        let mut found: Vec<&str> = said.lines().filter_map(|line| line.split(' ').next()).collect();
        found.sort_unstable();
        let list = std::fs::read_to_string(self.sources.join("symbols.txt"))?;
        let listed: Vec<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
        ensure!(found == listed, "exported:\n{}\nin the list:\n{}", found.join("\n"), listed.join("\n"));
        let said = output(Command::new("readelf").arg("-d").arg(&library))?;
        ensure!(said.contains("Library soname: [libclad.so.0]"), "another name:\n{said}");
        Ok(())
    }

    fn with_daemon<T>(&self, body: impl FnOnce(&str) -> Result<T>) -> Result<T> {
        with_daemon(&self.daemon, &self.data, body)
    }

    /// In an empty folder, with nothing but what the page says.
    fn first_record(&self) -> Result<()> {
        let page = std::fs::read_to_string(self.sources.join("README.md"))?;
        let program = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).context("no program")?;
        let body = program.split("main(void) {").nth(1).context("no main")?;
        let statements = body.matches(';').count();
        ensure!(statements <= FIRST_RECORD_STATEMENTS_MAX, "{statements} statements:\n{program}");
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("first.c"), program)?;
        let line = page.lines().find(|line| line.starts_with("cc first.c")).context("no line that builds it")?;
        let mut shell = Command::new("sh");
        shell.current_dir(folder.path()).env("PKG_CONFIG_PATH", self.prefix.join("lib/pkgconfig"));
        output(shell.args(["-c", line]))?;
        self.with_daemon(|address| {
            let mut first = Command::new(folder.path().join("first"));
            output(self.with_library(&mut first, &self.prefix).env("CLAD_SERVER", address))?;
            let said = self.run(Command::new(self.programs.join("print")).arg(address), &self.prefix)?;
            ensure!(said == "0 first paid\n", "the log has:\n{said}");
            let mut first = Command::new(folder.path().join("first"));
            output(&mut with_hosts_daemon(address, self.with_library(&mut first, &self.prefix)))?;
            let said = self.run(Command::new(self.programs.join("print")).arg(address), &self.prefix)?;
            ensure!(said == "0 first paid\n1 first paid\n", "without CLAD_SERVER the log has:\n{said}");
            Ok(())
        })
    }

    fn example(&self) -> Result<()> {
        // The page's line has no flags that a compiler needs to warn.
        self.compile(&self.sources.join("examples/shop.c"), &self.programs.join("shop"))?;
        with_example(&self.root, examples::C_PROGRAM, |example| {
            example.move_here("/tmp/clad")?;
            // The same library in a third of the time: what is looked at is not how fast it is.
            for (key, value) in [("LTO", "off"), ("CODEGEN_UNITS", "16"), ("OPT_LEVEL", "0")] {
                example.shell.env(format!("CARGO_PROFILE_SHIPPED_{key}"), value);
            }
            let said = example.run()?;
            ensure!(said.ends_with("80 records, 0 dropped\n"), "another end");
            let records = example.records()?;
            let orders: Vec<&str> = said.lines().filter(|line| line.starts_with("order ")).collect();
            for order in &orders {
                let offset: usize = order.rsplit(' ').next().unwrap_or_default().parse()?;
                let record = records.get(offset).with_context(|| format!("{order}, and no such record"))?;
                let attributes = &record["attributes"];
                let (worker, number) = (&attributes["worker"], &attributes["order"]);
                let stored = format!("order {number} of worker {worker} is record {}", record["offset"]);
                ensure!(record["body"] == "order taken" && stored == *order, "{order}, but {record}");
            }
            ensure!(orders.len() == 40 && records.len() == 80, "{} orders, {} records", orders.len(), records.len());
            Ok(())
        })
    }

    /// The bench of logging calls, for its counts alone: it ends well only where every record is stored.
    fn bench(&self) -> Result<()> {
        const EVENTS: &str = "500";
        let program = self.programs.join("log_call");
        self.compile(&self.sources.join("benches/log_call.c"), &program)?;
        let benches = build(&self.root, "clad-benches")?;
        self.with_daemon(|address| {
            let mut bench = Command::new(benches);
            bench.args(["logging_call", "--rounds", "1", "--events", EVENTS, "--server", address]);
            bench.arg("--dir").arg(&self.data).arg("--c").arg(&program);
            let said = output(self.with_library(&mut bench, &self.prefix))?;
            for contender in ["clad_tracing", "tracing_appender", "clad_client", "c_library"] {
                ensure!(said.contains(contender), "{contender} has no figures:\n{said}");
            }
            Ok(())
        })
    }

    /// Runs the agent until it has given some lines, and ends it as is said. Answers with its lines.
    fn agent_lines(&self, words: &[&str], lines: usize, kill: bool) -> Result<Vec<String>> {
        let mut command = Command::new(self.programs.join("agent"));
        self.with_library(&mut command, &self.prefix).args(words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut all = Vec::new();
        let mut out = BufReader::new(child.stdout.take().context("its output")?).lines();
        for line in out.by_ref().take(lines) {
            all.push(line?);
        }
        if kill {
            child.kill()?;
        }
        drop(child.stdin.take());
        for line in out {
            all.push(line?);
        }
        let ended = child.wait()?;
        ensure!(kill || ended.success(), "the agent ended with {ended}: {all:?}");
        Ok(all)
    }

    fn agent(&self) -> Result<()> {
        let id = "0123456789abcdef0123456789abcdef";
        self.with_daemon(|address| {
            let mut receipts = Vec::new();
            for (epoch, kill) in [("1", true), ("2", false), ("3", false)] {
                receipts.extend(self.agent_lines(&[address, id, "keeps", epoch, "keeps"], AGENT_RECEIPTS, kill)?);
            }
            let log = self.run(Command::new(self.programs.join("print")).arg(address), &self.prefix)?;
            for (number, line) in log.lines().enumerate() {
                ensure!(line == format!("{number} keeps {number}"), "{line} is the {number}th");
            }
            for receipt in &receipts {
                let place = receipt.strip_prefix("receipt ").and_then(|rest| rest.split_once(' '));
                let (number, offset) = place.with_context(|| format!("not a receipt: {receipt}"))?;
                ensure!(number == offset && number.parse::<usize>()? < log.lines().count(), "{receipt}");
            }
            ensure!(receipts.len() >= 3 * AGENT_RECEIPTS, "{} receipts", receipts.len());
            Ok(())
        })?;
        let ended = self
            .run(Command::new(self.programs.join("agent")).args(["unix:///x", "-", "x", "0", "other"]), &self.prefix);
        ensure!(ended.is_err_and(|error| error.to_string().contains("exit status: 2")), "an unknown mode is taken");
        Ok(())
    }

    fn dropping_agents(&self) -> Result<()> {
        for mode in ["drops-newest", "drops-oldest", "drops-below"] {
            self.with_daemon(|address| {
                let lines = self.agent_lines(&[address, "-", mode, "0", mode], AGENT_RECEIPTS, false)?;
                let (stats, outcomes) = lines.split_last().context("no lines")?;
                let count = |word: &str| outcomes.iter().filter(|line| line.starts_with(word)).count();
                ensure!(count("receipt ") + count("never ") == outcomes.len(), "{mode}: {lines:?}");
                let numbers: Vec<usize> = stats.split(' ').skip(1).map(str::parse).collect::<Result<_, _>>()?;
                let expected = [outcomes.len(), count("receipt "), count("never "), 0];
                ensure!(stats.starts_with("stats ") && numbers == expected, "{mode}: {stats}, expected {expected:?}");
                Ok(())
            })?;
        }
        Ok(())
    }

    fn statically(&self) -> Result<()> {
        let program = self.programs.join("static");
        let mut cc = Command::new("cc");
        cc.arg("-I").arg(self.prefix.join("include")).arg(self.sources.join("tests/print.c"));
        cc.arg(self.prefix.join("lib/libclad.a")).args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&program);
        output(&mut cc)?;
        let said = output(Command::new("readelf").arg("-d").arg(&program))?;
        ensure!(!said.contains("libclad"), "it needs the shared library:\n{said}");
        self.with_daemon(|address| {
            let said = output(Command::new(&program).arg(address))?;
            ensure!(said.is_empty(), "an empty log has:\n{said}");
            Ok(())
        })
    }

    /// The library with every fault in it, each turned on by its name.
    fn wrong_library(&self) -> Result<PathBuf> {
        let (copied, mut texts) = (target(&self.root).join("patched-c"), BTreeMap::new());
        std::fs::create_dir_all(&copied)?;
        for (number, fault) in FAULTS.iter().enumerate() {
            let path = self.sources.join("src").join(fault.file);
            let text = texts.remove(&path).map_or_else(|| std::fs::read_to_string(&path), Ok)?;
            ensure!(text.matches(fault.right).count() == 1, "its place is not there once: {}", fault.right);
            let on = format!("std::env::var(\"{FAULT_VARIABLE}\").is_ok_and(|on| on == \"{number}\")");
            texts.insert(path, text.replace(fault.right, &fault.wrong_text.replace("ON!", &on)));
        }
        faults::bring_up_to_date(&self.root, &copied, &texts)?;
        let folder = target(&self.root).join("patched-c-library");
        let built = c_library::build(&copied, &target(&self.root), &folder, "dev")?;
        let prefix = self.programs.join("wrong");
        c_library::install(&copied, &built, &prefix)?;
        Ok(prefix)
    }

    fn is_caught(&self, fault: &Fault, prefix: &Path) -> Result<()> {
        let number = FAULTS.iter().position(|one| std::ptr::eq(one, fault)).context("it is one")?;
        let mut command = Command::new(self.programs.join(fault.program));
        self.with_library(&mut command, prefix).arg(fault.caught_by).env(FAULT_VARIABLE, number.to_string());
        let ended = command.output()?;
        let said = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
        ensure!(!ended.status.success() && !said.contains("passed "), "nothing catches it:\n{said}");
        println!("          caught: {}", said.lines().next().unwrap_or("it was killed"));
        Ok(())
    }
}

const HEADER_PROGRAM: &str = r#"#include <clad.h>
#include <clad.h>
int main(void) {
  clad_options options = CLAD_OPTIONS_INIT;
  clad_call call = CLAD_CALL_INIT;
  clad_record record = CLAD_RECORD_INIT;
  clad_stats stats = CLAD_STATS_INIT;
  clad_reader_options reader_options = CLAD_READER_OPTIONS_INIT;
  clad_filter filter = CLAD_FILTER_INIT;
  clad_event event = CLAD_EVENT_INIT;
  clad_attribute attributes[] = {clad_string("a", "b"), clad_bytes("a", "b", 1), clad_int("a", 1),
                                 clad_double("a", 1), clad_bool("a", true)};
  char cursor[CLAD_CURSOR_BYTES];
  clad_status status = clad_flush(NULL, CLAD_LEVEL_DURABLE, CLAD_FOREVER);
  record = clad_text(CLAD_INFO, "x");
  record.attributes = attributes;
  reader_options.filter = &filter;
  cursor[0] = (char)event.kind;
  return status == CLAD_OK && options.size + call.size + record.size + stats.size + reader_options.size == 0 && cursor[0];
}
"#;

/// A wrong version of the library: one place of the text is changed, and a test must fail.
struct Fault {
    wrong: &'static str,
    file: &'static str,
    right: &'static str,
    /// `ON!` stands for the question whether it is turned on.
    wrong_text: &'static str,
    program: &'static str,
    caught_by: &'static str,
}

/// The files of the wrong versions, from the root, and what each changes there.
#[cfg(test)]
pub(super) fn places() -> impl Iterator<Item = (String, &'static str)> {
    FAULTS.iter().map(|fault| (format!("{SOURCES}/src/{}", fault.file), fault.right))
}

const FAULTS: &[Fault] = &[
    Fault {
        wrong: "the level of a call is not asked for",
        file: "options.rs",
        right: "made = made.at(level);",
        wrong_text: "if !ON! { made = made.at(level); }",
        program: "basics",
        caught_by: "a_level_that_is_not_offered_is_refused_and_not_lowered",
    },
    Fault {
        wrong: "a text that is not UTF-8 is lost",
        file: "record.rs",
        right: "map_or(Body::Bytes(bytes), Body::Text)",
        wrong_text: "map_or(if ON! { Body::Absent } else { Body::Bytes(bytes) }, Body::Text)",
        program: "basics",
        caught_by: "every_type_comes_back",
    },
    Fault {
        wrong: "a ticket forgets its outcome",
        file: "ticket.rs",
        right: "Some(outcome) => *state = State::Known(outcome),",
        wrong_text: "Some(outcome) if ON! => return clad_receipt::write(receipt, outcome),\n\
                     Some(outcome) => *state = State::Known(outcome),",
        program: "basics",
        caught_by: "a_ticket_gives_its_outcome_and_gives_it_again",
    },
    Fault {
        wrong: "a struct is read beyond its size",
        file: "pointers.rs",
        right: "let known = size.min(size_of::<T>());\n    let mut value",
        wrong_text: "let known = if ON! { size_of::<T>() } else { size.min(size_of::<T>()) };\n    \
                     let size = size.max(known);\n    let mut value",
        program: "basics",
        caught_by: "bad_arguments_are_errors",
    },
    Fault {
        wrong: "the place behind a record is that behind its append",
        file: "reader_event.rs",
        right: "let cursor = log_id.filter(|_| !is_last);",
        wrong_text: "let cursor = log_id.filter(|_| !is_last && !ON!);",
        program: "basics",
        caught_by: "a_reader_goes_on_at_its_cursor",
    },
    Fault {
        wrong: "a resumed producer forgets the last record",
        file: "producer.rs",
        right: "last.sequence.saturating_add(1)",
        wrong_text: "last.sequence.saturating_add(u64::from(!ON!))",
        program: "basics",
        caught_by: "a_producer_goes_on_from_what_the_log_has",
    },
    Fault {
        wrong: "an append without an answer is said to be not written",
        file: "producer.rs",
        right: "Err(Failure::unanswered(text))",
        wrong_text: "Err(Failure::new(CLAD_ERR_TIMEOUT, text).coded(None, true, !ON!))",
        program: "days",
        caught_by: "a_daemon_that_hangs_costs_no_call_its_deadline",
    },
    Fault {
        wrong: "the library's threads take the program's signals",
        file: "signals.rs",
        right: "let mask = Mask::block(&all);",
        wrong_text: "let mask = Mask::block(&if ON! { set(|_| {}) } else { all });",
        program: "days",
        caught_by: "no_thread_of_the_library_takes_a_signal",
    },
    Fault {
        wrong: "a child of fork drops its parent's connection",
        file: "reader.rs",
        right: "if self.process == std::process::id() {\n            // SAFETY",
        wrong_text: "if ON! || self.process == std::process::id() {\n            // SAFETY",
        program: "days",
        caught_by: "a_child_of_fork_gets_an_error_until_it_begins_again",
    },
    Fault {
        wrong: "a child of fork is not refused",
        file: "error.rs",
        right: "SendError::Reserve(ReserveError::Forked) | SendError::Submit(SubmitError::Forked) => CLAD_ERR_FORKED,",
        wrong_text: "SendError::Reserve(ReserveError::Forked) | SendError::Submit(SubmitError::Forked) if !ON! => CLAD_ERR_FORKED,",
        program: "days",
        caught_by: "a_child_of_fork_gets_an_error_until_it_begins_again",
    },
    Fault {
        wrong: "a record that is too long is not counted",
        file: "producer.rs",
        right: "if failure.status == CLAD_ERR_TOO_LARGE {",
        wrong_text: "if failure.status == CLAD_ERR_TOO_LARGE && !ON! {",
        program: "days",
        caught_by: "two_mebibytes_are_the_limit",
    },
];
