//! The whole machine as one value: operations on it, without any lock or thread.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use clad_journal::io::{Access, Durability, Lock};

use super::Options;
use super::content::Content;
use super::fault::{Counters, Dead, Fault, Op, OpKind};
use super::names::Names;
use crate::Rng;

pub(super) const ENOENT: i32 = 2;
pub(super) const EIO: i32 = 5;
pub(super) const EBADF: i32 = 9;
pub(super) const EEXIST: i32 = 17;
pub(super) const EISDIR: i32 = 21;
pub(super) const EINVAL: i32 = 22;
pub(super) const ENOSPC: i32 = 28;
pub(super) const EROFS: i32 = 30;
pub(super) const EDEADLK: i32 = 35;

pub(super) fn error(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

#[derive(Clone)]
pub(super) struct Inode {
    pub(super) content: Content,
    pub(super) sealed: bool,
    /// Its blocks are shared with a copy, or it has another name.
    pub(super) shared: bool,
    pub(super) sealed_durable: bool,
    pub(super) locks: Vec<(u64, Lock)>,
    /// Write-back errors so far, and whether the last was reported.
    pub(super) errors: u64,
    pub(super) error_reported: bool,
    pub(super) counters: Counters,
    /// Its name now, for rules and traces.
    pub(super) name: String,
}

#[derive(Clone)]
pub(super) struct Handle {
    pub(super) process: u64,
    pub(super) address: usize,
    pub(super) inode: u64,
    pub(super) access: Access,
    pub(super) errors_seen: u64,
    /// Operations in flight or late; they hold the description open.
    pub(super) flights: usize,
    pub(super) closed: bool,
}

/// Operation that can be in flight.
#[derive(Clone)]
pub(super) enum Action {
    Write {
        pos: u64,
        bytes: Vec<u8>,
        durability: Durability,
    },
    Sync {
        upto: u64,
        all: bool,
    },
    /// Pages of these bytes are written back: nothing else is, and no cache is flushed.
    Range {
        upto: u64,
        pos: u64,
        len: u64,
    },
}

#[derive(Clone)]
pub(super) struct Flight {
    pub(super) handle: u64,
    pub(super) inode: u64,
    pub(super) action: Action,
    pub(super) fault: Option<Fault>,
}

/// A direct write that outlived its process.
#[derive(Clone)]
pub(super) struct Late {
    pub(super) handle: u64,
    pub(super) inode: u64,
    pub(super) pos: u64,
    pub(super) bytes: Vec<u8>,
}

#[derive(Clone)]
pub(super) struct Disk {
    pub(super) options: Options,
    pub(super) rng: Rng,
    pub(super) names: Names,
    pub(super) inodes: BTreeMap<u64, Inode>,
    pub(super) handles: BTreeMap<u64, Handle>,
    pub(super) flights: BTreeMap<u64, Flight>,
    pub(super) late: Vec<Late>,
    pub(super) processes: BTreeSet<u64>,
    pub(super) boots: u64,
    pub(super) faults: BTreeMap<u64, Fault>,
    pub(super) rules: Vec<(OpKind, String, Fault)>,
    pub(super) broken: bool,
    pub(super) read_only: bool,
    pub(super) counters: Counters,
    pub(super) trace: Vec<Op>,
    seed: u64,
    seq: u64,
    next_id: u64,
}

impl Disk {
    pub(super) fn new(seed: u64, options: Options) -> Self {
        Self {
            options,
            rng: Rng::new(seed),
            names: Names::default(),
            inodes: BTreeMap::new(),
            handles: BTreeMap::new(),
            flights: BTreeMap::new(),
            late: Vec::new(),
            processes: BTreeSet::new(),
            boots: 0,
            faults: BTreeMap::new(),
            rules: Vec::new(),
            broken: false,
            read_only: false,
            counters: Counters::default(),
            trace: Vec::new(),
            seed,
            seq: 0,
            next_id: 1,
        }
    }

    pub(super) fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// The number of the last change; a sync covers everything up to it.
    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    pub(super) fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    pub(super) fn start_process(&mut self) -> u64 {
        let process = self.id();
        self.processes.insert(process);
        process
    }

    pub(super) fn is_alive(&self, process: u64) -> bool {
        self.processes.contains(&process)
    }

    pub(super) fn boot_id(&self) -> [u8; 16] {
        let mut rng = Rng::new(self.seed ^ self.boots.wrapping_mul(0xD1B5_4A32_D192_ED03));
        let mut id = [0; 16];
        id[..8].copy_from_slice(&rng.number().to_le_bytes());
        id[8..].copy_from_slice(&rng.number().to_le_bytes());
        id
    }

    /// Begins an operation: counts it, lets time pass, and finds the fault that is meant for it.
    pub(super) fn enter(
        &mut self,
        process: u64,
        kind: OpKind,
        name: &str,
        at: (u64, u64),
    ) -> io::Result<Option<Fault>> {
        if !self.is_alive(process) {
            return Err(Dead.into());
        }
        self.land_some_late();
        let number = self.counters.ops;
        self.counters.ops += 1;
        let rule = self.rules.iter().position(|(k, part, _)| *k == kind && name.contains(part.as_str()));
        let ruled = || rule.map(|at| self.rules.remove(at).2);
        let mut fault = self.faults.remove(&number).or_else(ruled);
        let changes = matches!(
            kind,
            OpKind::Write | OpKind::SyncedWrite | OpKind::SyncData | OpKind::SyncAll | OpKind::SyncRange
        );
        if self.broken && changes {
            fault = fault.or(Some(Fault::Io));
        }
        if self.options.trace {
            self.trace.push(Op { number, process, kind, name: name.to_owned(), pos: at.0, len: at.1, fault });
        }
        Ok(fault)
    }

    pub(super) fn crash(&mut self, process: u64, fault: Fault) -> io::Error {
        if fault == Fault::PowerCut {
            let survival = super::Survival::choose(&mut self.rng);
            self.power_cut(survival);
        } else {
            self.kill(process);
        }
        Dead.into()
    }

    pub(super) fn simple_fault(&mut self, process: u64, fault: Option<Fault>) -> io::Result<()> {
        match fault {
            None | Some(Fault::ShortWrite | Fault::FalseSync) => Ok(()),
            Some(Fault::Io) => Err(error(EIO)),
            Some(Fault::NoSpace) => Err(error(ENOSPC)),
            Some(Fault::WriteZero) => Err(io::ErrorKind::WriteZero.into()),
            Some(fault @ (Fault::PowerCut | Fault::Kill)) => Err(self.crash(process, fault)),
        }
    }

    /// An operation that changes nothing.
    pub(super) fn plain(&mut self, process: u64, kind: OpKind, name: &str) -> io::Result<()> {
        let fault = self.enter(process, kind, name, (0, 0))?;
        self.simple_fault(process, fault)
    }

    /// An operation on names: with a crash in the middle of it, it was done, and the crash decides about it.
    pub(super) fn change<T>(
        &mut self,
        process: u64,
        kind: OpKind,
        name: &str,
        run: impl FnOnce(&mut Self) -> io::Result<T>,
    ) -> io::Result<T> {
        let fault = self.enter(process, kind, name, (0, 0))?;
        if matches!(fault, Some(Fault::PowerCut | Fault::Kill)) {
            let in_time = self.rng.coin();
            if in_time && !self.read_only {
                let _ = run(self); // no process lives to get it
            }
            return Err(self.simple_fault(process, fault).expect_err("a crash"));
        }
        self.simple_fault(process, fault)?;
        if self.read_only {
            return Err(error(EROFS));
        }
        run(self)
    }

    pub(super) fn peek(&self, name: &str) -> Option<Vec<u8>> {
        let content = &self.inodes.get(&self.file(name).ok()?)?.content;
        let mut bytes = vec![0; content.len() as usize];
        content.read(0, &mut bytes, false);
        Some(bytes)
    }

    pub(super) fn digest(&self) -> u64 {
        let mut hash = 0xCBF2_9CE4_8422_2325_u64;
        let mut eat = |bytes: &[u8]| {
            for byte in bytes {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
            }
        };
        for (name, _) in self.names.all() {
            eat(name.as_bytes());
            let bytes = self.peek(name).unwrap_or_default();
            eat(&(bytes.len() as u64).to_le_bytes());
            eat(&bytes);
        }
        hash
    }
}

impl Inode {
    pub(super) fn note_error(&mut self, lost_in_the_page_cache: bool) {
        if lost_in_the_page_cache {
            self.errors += 1;
            self.error_reported = false;
        }
    }
}
