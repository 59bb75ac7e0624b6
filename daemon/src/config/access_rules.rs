//! Reading and showing `[[access.rule]]`.
//!
//! Invariants: a rule is taken as it stands or refused with what was expected; nothing in it is ignored. Rules are read back as
//! they are shown.

use clad_proto::LogId;
use config::{Map, Value, ValueKind};
use serde_json::json;

use super::access::{Pattern, Right, Who};
use super::nearest::nearest;
use super::origin::Origin;
use super::types::{AccessRule, DefaultAck};
use super::value::{Setting, Shown};

/// Most rules: each is asked in turn.
const RULES_MAX: usize = 1000;
/// Keys of a rule.
const KEYS: [&str; 7] = ["who", "may", "component", "max_level", "max_bytes_per_second", "owner", "logs"];

/// A part of a rule, where it is there.
fn part<'a>(table: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    table.get(name)
}

/// A text or an array of texts, each read by `one`.
fn each<T>(value: &Value, one: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let text = |value: &Value| match &value.kind {
        ValueKind::String(text) => one(text),
        _ => Err("expected a text, or an array of texts".to_owned()),
    };
    match &value.kind {
        ValueKind::Array(all) => all.iter().map(text).collect(),
        _ => text(value).map(|one| vec![one]),
    }
}

fn who(text: &str) -> Result<Who, String> {
    Who::parse(text).ok_or_else(|| {
        format!(
            "expected \"*\", uid:NUMBER-OR-NAME, gid:NUMBER-OR-NAME, cert:NAME, token:NAME or address:NETWORK/BITS \
             (`*` stands for any part of a NAME), found {text:?}"
        )
    })
}

fn right(text: &str) -> Result<Right, String> {
    let words: Vec<&str> = Right::ALL.iter().map(|right| right.as_str()).collect();
    Right::ALL.into_iter().find(|right| right.as_str() == text).ok_or_else(|| {
        format!("expected one of {}, found {text:?}; nearest: {:?}", words.join(", "), nearest(text, &words))
    })
}

fn pattern(value: &Value) -> Result<Pattern, String> {
    let text = String::read(value)?;
    Pattern::parse(&text).ok_or_else(|| format!("expected a name, in which `*` stands for any part, found {text:?}"))
}

fn owner(value: &Value) -> Result<String, String> {
    let text = String::read(value)?;
    let fits = (1..=crate::tls::NAME_BYTES_MAX).contains(&text.len());
    fits.then_some(text).ok_or_else(|| format!("expected a name of 1 to {} bytes", crate::tls::NAME_BYTES_MAX))
}

fn log(text: &str) -> Result<LogId, String> {
    text.parse().map_err(|_| format!("expected the id of a log, 32 hex digits, found {text:?}"))
}

impl AccessRule {
    fn read(value: &Value) -> Result<Self, String> {
        let ValueKind::Table(table) = &value.kind else { return Err("expected a table".to_owned()) };
        let mut names: Vec<&str> = table.keys().map(String::as_str).collect();
        names.sort_unstable();
        if let Some(name) = names.into_iter().find(|name| !KEYS.contains(name)) {
            return Err(format!("unknown key `{name}`; nearest valid key: `{}`", nearest(name, &KEYS)));
        }
        let at = |name: &'static str| move |problem: String| format!("`{name}`: {problem}");
        let wanted = |name: &str| part(table, name).ok_or_else(|| format!("`{name}` must be set"));
        let who = each(wanted("who")?, who).map_err(at("who"))?;
        if who.is_empty() {
            return Err("`who`: expected at least one".to_owned());
        }
        let mut may = each(wanted("may")?, right).map_err(at("may"))?;
        may.sort_unstable();
        may.dedup();
        let component = part(table, "component").map(pattern).transpose().map_err(at("component"))?;
        let level = part(table, "max_level").map(DefaultAck::read).transpose().map_err(at("max_level"))?;
        let rate =
            part(table, "max_bytes_per_second").map(u64::read).transpose().map_err(at("max_bytes_per_second"))?;
        let owner = part(table, "owner").map(owner).transpose().map_err(at("owner"))?;
        let logs = part(table, "logs").map(|logs| each(logs, log)).transpose().map_err(at("logs"))?;
        let limits = [("component", component.is_some()), ("max_level", level.is_some())];
        let limits = limits.into_iter().chain([("max_bytes_per_second", rate.is_some()), ("owner", owner.is_some())]);
        let stores = may.contains(&Right::Append) || may.contains(&Right::Forward);
        if let Some((name, _)) = limits.into_iter().find(|(_, is_set)| *is_set && !stores) {
            return Err(format!("`{name}` is for appends, and `may` has no \"append\""));
        }
        if logs.is_some() && !may.contains(&Right::Forward) {
            return Err("`logs` is for forwarding, and `may` has no \"forward\"".to_owned());
        }
        Ok(Self {
            who,
            may,
            component,
            max_level: level.unwrap_or(DefaultAck::Highest),
            max_bytes_per_second: rate.unwrap_or(0),
            owner,
            logs,
            at: Origin::from(value).to_string(),
        })
    }

    /// The rule, as TOML on one line.
    pub(crate) fn in_words(&self) -> String {
        self.shown().0
    }

    fn shown(&self) -> (String, serde_json::Value) {
        let who: Vec<String> = self.who.iter().map(ToString::to_string).collect();
        let may: Vec<&str> = self.may.iter().map(|right| right.as_str()).collect();
        let mut toml = vec![format!("who = {}", json!(who)), format!("may = {}", json!(may))];
        let mut all = json!({ "who": who, "may": may });
        let mut add = |name: &str, shown: Shown| {
            toml.push(format!("{name} = {}", shown.toml));
            if let (Some(object), Some((_, value))) = (all.as_object_mut(), shown.json.into_iter().next()) {
                object.insert(name.to_owned(), value);
            }
        };
        if let Some(component) = &self.component {
            add("component", component.to_string().show());
        }
        if self.max_level != DefaultAck::Highest {
            add("max_level", self.max_level.show());
        }
        if self.max_bytes_per_second > 0 {
            add("max_bytes_per_second", self.max_bytes_per_second.show());
        }
        if let Some(owner) = &self.owner {
            add("owner", owner.show());
        }
        if let Some(logs) = &self.logs {
            let ids: Vec<String> = logs.iter().map(ToString::to_string).collect();
            add("logs", Shown { toml: json!(ids).to_string(), json: vec![("value", json!(ids))] });
        }
        (format!("{{ {} }}", toml.join(", ")), all)
    }
}

/// The rules, in their order.
impl Setting for Vec<AccessRule> {
    fn read(value: &Value) -> Result<Self, String> {
        let rules = match &value.kind {
            ValueKind::Array(rules) => rules,
            ValueKind::String(text) if text.is_empty() => return Ok(Self::new()),
            _ => return Err("expected [[access.rule]] in a file, or \"\" for no rules".to_owned()),
        };
        if rules.len() > RULES_MAX {
            return Err(format!("{} rules; {RULES_MAX} is the limit", rules.len()));
        }
        let read = |(at, value): (usize, &Value)| {
            AccessRule::read(value).map_err(|problem| format!("rule {} ({}): {problem}", at + 1, Origin::from(value)))
        };
        rules.iter().enumerate().map(read).collect()
    }

    fn show(&self) -> Shown {
        let (toml, all): (Vec<String>, Vec<serde_json::Value>) = self.iter().map(AccessRule::shown).unzip();
        Shown { toml: format!("[{}]", toml.join(", ")), json: vec![("value", json!(all))] }
    }
}
