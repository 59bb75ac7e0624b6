//! `clad check --as`: what a peer may do, and what decides.

use clad_proto::{AckLevel, LogId};

use super::read_group::ReadGroup;
use super::rights::Decided;
use super::rules::RuleSet;
use super::subject::Subject;
use crate::config::{Config, Right};

/// An action that is asked about.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) right: Right,
    /// Component of the records that are appended.
    pub(crate) component: Option<String>,
    /// Level that is asked for.
    pub(crate) level: Option<AckLevel>,
    /// Log whose appends are forwarded.
    pub(crate) log: Option<LogId>,
}

/// True if the action is allowed, and the reason.
pub(crate) fn explain(config: &Config, rules: &RuleSet, subject: &Subject, asked: &Asked) -> (bool, String) {
    if let Some(token) = subject.token.as_deref().filter(|token| !rules.has_token(token)) {
        return (false, format!("access.tokens_file has no token of the name {token}"));
    }
    if asked.right == Right::Admin && subject.uid.is_some() {
        let group = match config.access.admin_group.as_str() {
            "" => "the daemon's own group",
            group => group,
        };
        let text = format!("no rule decides about admin.path: its mode does, 0660 (root, the daemon's user, {group})");
        return (subject.uid == Some(0), text);
    }
    if rules.is_empty() {
        return without_rules(config, subject, asked.right);
    }
    let rights = rules.rights(subject, false);
    let Decided::Rule(number) = rights.decided else { return (false, "no access.rule fits".to_owned()) };
    let rule = &config.access.rule[number - 1];
    let stands = format!("access.rule {number} ({}) decides: {}", rule.at, rule.in_words());
    if !rights.may(asked.right) {
        return (false, stands);
    }
    if let Some(log) = asked.log.filter(|log| asked.right == Right::Forward && !rights.may_forward(*log)) {
        return (false, format!("{stands}; `logs` does not name {log}"));
    }
    if asked.right == Right::Append {
        if let (Some(pattern), Some(component)) = (&rights.component, &asked.component)
            && !pattern.matches(component)
        {
            return (false, format!("{stands}; {component} is no {pattern}"));
        }
        if let (Some(most), Some(level)) = (rights.max_level, asked.level)
            && level > most
        {
            return (false, format!("{stands}; {level} is above {most}"));
        }
    }
    let note = match (asked.right, subject.address) {
        (Right::Admin, _) => "; over the network, on ingest.grpc where it speaks TLS",
        _ => "",
    };
    (true, format!("{stands}{note}"))
}

fn without_rules(config: &Config, subject: &Subject, right: Right) -> (bool, String) {
    let rule = "there is no access.rule";
    match (right, subject.uid) {
        (Right::Append, _) => (true, format!("{rule}: whoever reaches a listener may append")),
        (Right::Read, Some(uid)) => {
            let group = &config.access.read_group;
            let may = ReadGroup::new(group).has(uid, subject.gid.unwrap_or(u32::MAX));
            (may, format!("{rule}: root, the user of this command, and access.read_group = {group:?} may read"))
        }
        (Right::Read, None) => {
            let (tcp, grpc) = (config.ingest.tcp.allow_read, config.ingest.grpc.allow_read);
            let text = format!("{rule}: ingest.tcp.allow_read = {tcp}, ingest.grpc.allow_read = {grpc} decide");
            (tcp || grpc, text)
        }
        (Right::Hold, Some(uid)) => {
            let group = &config.access.read_group;
            let may = ReadGroup::new(group).has(uid, subject.gid.unwrap_or(u32::MAX));
            (may, format!("{rule}: who may read on ingest.unix.path may hold; access.read_group = {group:?}"))
        }
        (Right::Hold, None) => (false, format!("{rule}: nobody holds over the network")),
        (Right::Admin, _) => (false, format!("{rule}: nobody administers over the network")),
        (Right::Forward, uid) => {
            let may = uid.is_some_and(|uid| uid == 0 || uid == rustix::process::geteuid().as_raw());
            (may, format!("{rule}: root and the user of this command may forward, on the Unix socket"))
        }
    }
}
